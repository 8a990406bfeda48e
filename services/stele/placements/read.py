"""Reading the Delta tables without Spark. Each function takes the address of them all: a path or a URL."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
from deltalake import DeltaTable

from stele.domain.ring.ranges import RangeReplicas
from stele.placements.store import Store

Address = Path | str
Row = dict[str, Any]
"""Column -> value, as the table's schema has them."""


class Materialized(msgspec.Struct, frozen=True):
    """How far a cluster's events are in the tables; ``state_id`` is 32 hex digits."""

    epoch: int
    state_id: str


def read_table(address: Address, name: str, cluster: str, version: int | None = None) -> list[Row]:
    """The rows of one cluster, in no order, at ``version`` or the newest. Raises TableMissing."""
    return _read(Store(address).table(name, version), cluster)


def reached(address: Address, cluster: str) -> Materialized | None:
    """The newest epoch in table ``events``; the others follow within moments. None: no epoch."""
    events = Store(address).table("events").to_pyarrow_dataset()
    kinds = pc.field("row_kind").isin(["epoch", "snapshot"])
    wanted = (pc.field("cluster") == cluster) & kinds
    rows = events.to_table(["epoch", "state_id"], wanted).to_pylist()
    if not rows:
        return None
    last = max(rows, key=lambda row: int(row["epoch"]))
    return Materialized(last["epoch"], last["state_id"])


def current_placements(
    address: Address, cluster: str, version: int | None = None
) -> dict[str, list[RangeReplicas]]:
    """Table ``placements``: rows by the placement's name, ascending."""
    return _by_placement(read_table(address, "placements", cluster, version))


def placements_at(address: Address, cluster: str, epoch: int) -> dict[str, list[RangeReplicas]]:
    """The placements as they were at ``epoch``, one that table ``placements`` has reached.

    Rows that went are in ``placements_past``, which is written first: what went after the epoch of
    ``placements`` itself is still there too, so it does not count.
    """
    store = Store(address)
    table = store.table("placements")
    head = table.transaction_version(head_of_cluster(cluster)) or 0
    came = pc.field("from_epoch") <= epoch
    went = (pc.field("to_epoch") > epoch) & (pc.field("to_epoch") <= head)
    past = _read(store.table("placements_past"), cluster, came & went)
    return _by_placement([*past, *_read(table, cluster, came)])


def holds_epoch(address: Address, cluster: str, epoch: int) -> bool:
    """Whether the tables were at this epoch: those that a snapshot passed over are not known."""
    if epoch == 0:
        return True
    wanted = (
        (pc.field("cluster") == cluster)
        & pc.field("row_kind").isin(["epoch", "snapshot"])
        & (pc.field("epoch") == epoch)
    )
    events = Store(address).table("events").to_pyarrow_dataset()
    return bool(events.count_rows(filter=wanted))


def head_of_cluster(cluster: str) -> str:
    """The application transaction whose version is the epoch that a table of placements holds."""
    return f"stele-placements-{cluster}"


def range_of_row(row: Mapping[str, Any]) -> RangeReplicas:
    """A row of the tables as the domain has it."""
    reads, writes = tuple(row["read_replicas"]), tuple(row["write_replicas"])
    versions = row["version"], row["version_before"]
    other = tuple(row["other_replicas"])
    shards = (tuple(row[column] or ()) for column in ("shards", "other_shards"))
    bounds = row["range_start"], row["range_end"]
    return RangeReplicas(*bounds, reads, writes, *versions, other, *shards)


def _by_placement(rows: Iterable[Row]) -> dict[str, list[RangeReplicas]]:
    found: dict[str, list[RangeReplicas]] = {}
    for row in sorted(rows, key=lambda row: (row["placement"], row["range_start"])):
        found.setdefault(row["placement"], []).append(range_of_row(row))
    return found


def _read(table: DeltaTable, cluster: str, wanted: pc.Expression | None = None) -> list[Row]:
    mine = pc.field("cluster") == cluster
    wanted = mine if wanted is None else mine & wanted
    found: list[Row] = table.to_pyarrow_dataset().to_table(filter=wanted).to_pylist()
    return found
