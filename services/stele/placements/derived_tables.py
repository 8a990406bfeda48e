"""``placements``, ``placements_past`` and the summaries, which follow from the events.

Each commit carries the epoch that it brings a cluster to, as the version of an application transaction, and is
refused when another process came first. So only newer epochs are ever applied.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas
from stele.placements import balance
from stele.placements.fold import Held, HeldRows, Key, PastRow
from stele.placements.read import head_of_cluster, range_of_row
from stele.placements.store import Store
from stele.placements.summaries import SUMMARIES, Row, Summary, changed, rows_of
from stele.placements.tables import (
    ATTEMPTS,
    BALANCE,
    CHANGES,
    CURRENT,
    PAST,
    SCHEMAS,
    STREAMS,
    Conflict,
    existing_table,
    open_table,
)

USER_METADATA: Final = "userMetadata"
"""Delta's name of what a commit says of itself: here the epoch that each cluster has with it, as JSON."""


class Derived:
    """The tables, which are written from the folds of ``derive``."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._summarized: dict[str, Image] = {}
        """The images from which this process made summaries last."""
        for name in (PAST, CHANGES, CURRENT, BALANCE, STREAMS, *SUMMARIES):
            open_table(store, name)

    def load(self, cluster: str) -> tuple[int, dict[str, HeldRows]]:
        """The epoch of ``placements``, and its rows; from nothing when ``placements_past`` is behind."""
        table = existing_table(self.store, CURRENT)
        epoch = epoch_of(table, cluster)
        past = existing_table(self.store, PAST)
        if epoch_of(past, cluster) < epoch:
            return 0, {}
        found: dict[str, HeldRows] = {}
        rows = table.to_pyarrow_dataset().to_table(filter=pc.field("cluster") == cluster)
        for row in rows.to_pylist():
            held = Held(range_of_row(row), row["from_epoch"])
            found.setdefault(row["placement"], {})[held.row.start] = held
        return epoch, found

    def streams_epoch(self, cluster: str) -> int:
        """Streams that were opened up to this epoch are in their table."""
        return epoch_of(existing_table(self.store, STREAMS), cluster)

    def write_streams(self, rows: Mapping[str, Iterable[Row]], epochs: Mapping[str, int]) -> None:
        """Append streams that the table does not have, of epochs above the table's own. A snapshot has some
        that were opened before it.
        """
        for table in self._attempts(STREAMS):
            behind = {c: epochs[c] for c in rows if epochs[c] > epoch_of(table, c)}
            new = [{"cluster": c, **row} for c in behind for row in rows[c]]
            sessions = pa.array(sorted({row["session"] for row in new}), pa.string())
            data = table.to_pyarrow_dataset()
            names = ["cluster", "session", "to_node"]
            held = data.to_table(names, pc.field("session").isin(sessions)).to_pylist()
            known = {tuple(row.values()) for row in held}
            new = [
                row for row in new if (row["cluster"], row["session"], row["to_node"]) not in known
            ]
            if not behind or commit(
                table, pa.Table.from_pylist(new, schema=SCHEMAS[STREAMS]), behind, "append"
            ):
                return

    def write_past(self, rows: Mapping[str, Iterable[PastRow]], epochs: Mapping[str, int]) -> None:
        """Append the rows that went, of epochs above the table's own."""
        for table in self._attempts(PAST):
            heads = {cluster: epoch_of(table, cluster) for cluster in rows}
            behind = {c: epochs[c] for c in rows if epochs[c] > heads[c]}
            new = {c: [row for row in rows[c] if row.to_epoch > heads[c]] for c in behind}
            if not behind or commit(table, _past(new), behind, "append"):
                return

    def write_current(
        self, rows: Mapping[str, Mapping[str, HeldRows]], epochs: Mapping[str, int]
    ) -> None:
        """Replace the clusters' rows where theirs are older."""
        for table in self._attempts(CURRENT):
            heads = {cluster: epoch_of(table, cluster) for cluster in rows}
            new = {name: rows[name] for name in rows if epochs[name] > heads[name]}
            behind = {cluster: epochs[cluster] for cluster in new}
            if not new or commit(table, _current(new), behind, "overwrite"):
                return

    def write_changes(
        self,
        changes: Mapping[str, Mapping[Key, Held | None]],
        epochs: Mapping[str, int],
    ) -> None:
        """Append the rows that changed, None for one that is gone, where the table is older."""
        for table in self._attempts(CHANGES):
            behind = {c: epochs[c] for c in changes if epochs[c] > epoch_of(table, c)}
            new = {cluster: changes[cluster] for cluster in behind}
            if not behind or commit(table, _changes(new, epochs), behind, "append"):
                return

    def changed(self, clusters: Iterable[str]) -> set[str]:
        """Those of which the table of changes has, or had, rows."""
        table = existing_table(self.store, CHANGES)
        return {cluster for cluster in clusters if epoch_of(table, cluster)}

    def forget_changes(self, clusters: Iterable[str]) -> bool:
        """``placements`` has them all now. False when another process came first; some that stay do no harm."""
        try:
            existing_table(self.store, CHANGES).delete(f"cluster IN ({_quoted(clusters)})")
        except CommitFailedError:
            return False
        return True

    def write_balance(self, images: Mapping[str, Image]) -> None:
        """Append how even the clusters are, at epochs above the table's own."""
        for table in self._attempts(BALANCE):
            behind = {c: i.epoch for c, i in images.items() if i.epoch > epoch_of(table, c)}
            rows = [
                row for cluster in sorted(behind) for row in balance.rows(cluster, images[cluster])
            ]
            new = pa.Table.from_pylist(rows, schema=SCHEMAS[BALANCE])
            if not behind or commit(table, new, behind, "append"):
                return

    def write_summaries(self, images: Mapping[str, Image]) -> None:
        """Replace the clusters' rows in each of the tables where theirs are older, and may be others."""
        for name, summary in SUMMARIES.items():
            new_images = {
                cluster: image
                for cluster, image in images.items()
                if changed(summary, self._summarized.get(cluster), image)
            }
            if new_images:
                self._write_summary(name, summary, new_images)
        spread = {c: i for c, i in images.items() if self._is_spread_anew(c, i)}
        if spread:
            self.write_balance(spread)
        self._summarized |= images

    def _is_spread_anew(self, cluster: str, image: Image) -> bool:
        before = self._summarized.get(cluster)
        return before is None or any(
            getattr(before, domain) is not getattr(image, domain)
            for domain in ("ring", "membership")
        )

    def _write_summary(self, name: str, summary: Summary, images: Mapping[str, Image]) -> None:
        for table in self._attempts(name):
            behind = {
                cluster: image.epoch
                for cluster, image in images.items()
                if image.epoch > epoch_of(table, cluster)
            }
            if not behind:
                return
            rows = [
                row
                for cluster in sorted(behind)
                for row in rows_of(summary, cluster, images[cluster])
            ]
            rows += _kept(table, summary, rows, behind)
            if commit(
                table, pa.Table.from_pylist(rows, schema=summary.schema), behind, "overwrite"
            ):
                return

    def _attempts(self, name: str) -> Iterator[DeltaTable]:
        for _ in range(ATTEMPTS):
            yield existing_table(self.store, name)
        raise Conflict(f"Another process wrote to {self.store.uri(name)} first, {ATTEMPTS} times.")


def epoch_of(table: DeltaTable, cluster: str) -> int:
    """Which epoch of a cluster the table holds."""
    return table.transaction_version(head_of_cluster(cluster)) or 0


def commit(table: DeltaTable, rows: pa.Table, epochs: Mapping[str, int], mode: str) -> bool:
    """One commit with its heads, which its metadata name too; false when another process came first.

    ``overwrite`` replaces the rows of the clusters that have epochs.
    """
    properties = CommitProperties(
        app_transactions=[
            Transaction(head_of_cluster(c), epoch) for c, epoch in sorted(epochs.items())
        ],
        custom_metadata={USER_METADATA: msgspec.json.encode(epochs, order="sorted").decode()},
        max_commit_retries=0,
    )
    replace: dict[str, Any] = (
        {"predicate": f"cluster IN ({_quoted(epochs)})"} if mode == "overwrite" else {}
    )
    try:
        write_deltalake(table, rows, mode=mode, commit_properties=properties, **replace)  # type: ignore[call-overload]
    except CommitFailedError:
        return False
    return True


def _quoted(clusters: Iterable[str]) -> str:
    """For a list of SQL; the name of a cluster has no quotation marks."""
    return ", ".join(f"'{cluster}'" for cluster in sorted(clusters))


def _kept(
    table: DeltaTable, summary: Summary, rows: list[Row], clusters: Iterable[str]
) -> list[Row]:
    """Rows of the table that the images have forgotten, of a summary that keeps them."""
    if not summary.key:
        return []
    known = {(row["cluster"], row[summary.key]) for row in rows}
    mine = pc.field("cluster").isin(sorted(clusters))
    old: list[Row] = table.to_pyarrow_dataset().to_table(filter=mine).to_pylist()
    return [row for row in old if (row["cluster"], row[summary.key]) not in known]


def _cells(cluster: str, placement: str, row: RangeReplicas, from_epoch: int) -> dict[str, object]:
    return {
        "cluster": cluster,
        "placement": placement,
        "range_start": row.start,
        "range_end": row.end,
        "read_replicas": list(row.reads),
        "write_replicas": list(row.writes),
        "version": row.version,
        "version_before": row.version_before,
        "other_replicas": list(row.other),
        "from_epoch": from_epoch,
        "shards": list(row.shards),
        "other_shards": list(row.other_shards),
    }


def _past(rows: Mapping[str, Iterable[PastRow]]) -> pa.Table:
    cells = [
        {**_cells(cluster, past.placement, past.row, past.from_epoch), "to_epoch": past.to_epoch}
        for cluster, found in rows.items()
        for past in found
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[PAST])


def _changes(
    changes: Mapping[str, Mapping[Key, Held | None]], epochs: Mapping[str, int]
) -> pa.Table:
    cells = [
        {
            **(
                {"cluster": cluster, "placement": placement, "range_start": start}
                if held is None
                else _cells(cluster, placement, held.row, held.from_epoch)
            ),
            "changed_epoch": epochs[cluster],
            "is_gone": held is None,
        }
        for cluster, found in changes.items()
        for (placement, start), held in found.items()
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[CHANGES])


def _current(rows: Mapping[str, Mapping[str, HeldRows]]) -> pa.Table:
    cells = [
        _cells(cluster, placement, held.row, held.from_epoch)
        for cluster, placements in rows.items()
        for placement, found in placements.items()
        for held in found.values()
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[CURRENT])
