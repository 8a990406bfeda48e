"""Place of the Delta tables: a folder of this machine, or an address of an object store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from stele.domain.ring.ranges import RangeReplicas

SCHEMES: Final = ("file", "s3", "s3a", "gs", "abfs", "abfss", "az", "adl")
FORMS: Final = "Write a path, file:///PATH, s3://BUCKET/PREFIX, gs://... or abfss://..."


class TableMissing(Exception):
    """There is no Delta table at the address, or not at that version."""


class TableStore:
    """Tables by their names below one address.

    Keys and endpoint of an object store come from delta-rs's environment variables: AWS_*, AZURE_*,
    ...
    """

    def __init__(self, address: Path | str) -> None:
        """Parse the address. Raises ValueError, whose text explains the format."""
        text = str(address)
        scheme, place, path, *_ = urlsplit(text)
        self.folder: Path | None = None
        """The folder of the tables; None for an object store."""
        if "://" not in text:
            self.folder = Path(text).resolve()
        elif scheme not in SCHEMES:
            raise ValueError(f"'{text}' is no place for tables. {FORMS}")
        elif scheme == "file":
            if place not in ("", "localhost"):
                raise ValueError(f"'{text}' names another machine. {FORMS}")
            self.folder = Path(path)
        elif not place:
            raise ValueError(f"'{text}' names no bucket. {FORMS}")
        self._root = str(self.folder or text).rstrip("/")

    def __str__(self) -> str:
        return self._root

    def uri(self, name: str) -> str:
        return f"{self._root}/{name}"

    def is_there(self, name: str) -> bool:
        """Return whether the table exists. Raises DeltaError, OSError."""
        return DeltaTable.is_deltatable(self.uri(name))

    def table(self, name: str, version: int | None = None) -> DeltaTable:
        """Return the table at its newest or a given version. Raises TableMissing."""
        uri = self.uri(name)
        try:
            return DeltaTable(uri, version=version)
        except (TableNotFoundError, DeltaError, OSError) as error:
            at = "newest" if version is None else version
            raise TableMissing(
                f"There is no Delta table at {uri}, version {at}: {error}"
            ) from error


# Read the Delta tables without Spark. Each function takes the common address: a path or a URL.


Address = Path | str
Row = dict[str, Any]
"""Values by column, as in the table's schema."""


def placements_at(address: Address, cluster: str, epoch: int) -> dict[str, list[RangeReplicas]]:
    """Return the placements at ``epoch``, which table ``placements`` must have reached.

    Rows that ended are in ``placements_past``, which is written first. A row that ended after the
    epoch of ``placements`` is still in ``placements`` too, so the past one does not count.
    """
    store = TableStore(address)
    table = store.table("placements")
    head = table.transaction_version(head_of_cluster(cluster)) or 0
    came = pc.field("from_epoch") <= epoch
    went = (pc.field("to_epoch") > epoch) & (pc.field("to_epoch") <= head)
    past = rows_of_cluster(store.table("placements_past"), cluster, came & went)
    return by_placement([*past, *rows_of_cluster(table, cluster, came)])


def holds_epoch(address: Address, cluster: str, epoch: int) -> bool:
    """Return whether the tables were at this epoch. Epochs that a snapshot skipped are unknown."""
    if epoch == 0:
        return True
    wanted = (
        (pc.field("cluster") == cluster)
        & pc.field("row_kind").isin(["epoch", "snapshot"])
        & (pc.field("epoch") == epoch)
    )
    events = TableStore(address).table("events").to_pyarrow_dataset()
    return bool(events.count_rows(filter=wanted))


def head_of_cluster(cluster: str) -> str:
    """Return the application transaction whose version is the epoch of a placement table."""
    return f"stele-placements-{cluster}"


def sql_text(text: str) -> str:
    """Return a text as an SQL string.

    Names in reports may contain any character, because any node may write reports.
    """
    return "'" + text.replace("'", "''") + "'"


def in_clusters(clusters: Iterable[str]) -> str:
    """Return the SQL condition for the rows of these clusters."""
    return f"cluster IN ({', '.join(map(sql_text, sorted(clusters)))})"


def range_of_row(row: Mapping[str, Any]) -> RangeReplicas:
    """Convert a row of the tables to the domain's type."""
    reads, writes = tuple(row["read_replicas"]), tuple(row["write_replicas"])
    versions = row["version"], row["version_before"]
    other = tuple(row["other_replicas"])
    shards = (tuple(row[column] or ()) for column in ("shards", "other_shards"))
    bounds = row["range_start"], row["range_end"]
    return RangeReplicas(*bounds, reads, writes, *versions, other, *shards)


def by_placement(rows: Iterable[Row]) -> dict[str, list[RangeReplicas]]:
    """Return the ranges of rows of the tables, ascending, by the placement's name."""
    found: dict[str, list[RangeReplicas]] = {}
    for row in sorted(rows, key=lambda row: (row["placement"], row["range_start"])):
        found.setdefault(row["placement"], []).append(range_of_row(row))
    return found


def rows_of_cluster(
    table: DeltaTable, cluster: str, wanted: pc.Expression | None = None
) -> list[Row]:
    """Return the rows of one cluster, unordered; only ``wanted`` ones if that is given."""
    mine = pc.field("cluster") == cluster
    wanted = mine if wanted is None else mine & wanted
    found: list[Row] = table.to_pyarrow_dataset().to_table(filter=wanted).to_pylist()
    return found
