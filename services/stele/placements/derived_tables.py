"""``placements``, ``placements_past`` and the summaries, which follow from the events.

Each commit carries the epoch that it brings a cluster to, as the version of an application transaction, and is
refused when another process came first. So only newer epochs are ever applied.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

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
from stele.placements.table_heads import Heads, TableHeads
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


class Loaded(NamedTuple):
    """The rows of ``placements``, by cluster the epoch that they are of, and the one up to which streams that
    were opened are in their table.
    """

    rows: pa.Table
    epochs: Mapping[str, int]
    streams_epochs: Mapping[str, int]

    def placements(self, cluster: str) -> dict[str, HeldRows]:
        """At the cluster's epoch; nothing when ``placements_past`` is behind, and all is made anew."""
        found: dict[str, HeldRows] = {}
        if self.epochs[cluster]:
            for row in self.rows.filter(pc.field("cluster") == cluster).to_pylist():
                held = Held(range_of_row(row), row["from_epoch"])
                found.setdefault(row["placement"], {})[held.row.start] = held
        return found


class Derived:
    """The tables, which are written from the folds of ``derive``."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._heads = TableHeads()
        self._summarized: dict[str, Image] = {}
        """The images from which this process made summaries last."""
        for name in (PAST, CHANGES, CURRENT, BALANCE, STREAMS, *SUMMARIES):
            open_table(store, name)

    def load(self, clusters: Iterable[str]) -> "Loaded":
        """What the tables hold of these clusters. Each is read once, for all of them."""
        wanted = sorted(clusters)
        table, heads = self._open(CURRENT)
        rows = table.to_pyarrow_dataset().to_table(filter=pc.field("cluster").isin(wanted))
        past, streams = (self._open(name)[1] for name in (PAST, STREAMS))
        return Loaded(
            rows,
            {c: heads.of(c) if past.of(c) >= heads.of(c) else 0 for c in wanted},
            {c: streams.of(c) for c in wanted},
        )

    def write_streams(self, rows: Mapping[str, Iterable[Row]], epochs: Mapping[str, int]) -> None:
        """Append streams that the table does not have, of epochs above the table's own. A snapshot has some
        that were opened before it.
        """
        for table, heads in self._attempts(STREAMS):
            behind = {c: epochs[c] for c in rows if epochs[c] > heads.of(c)}
            new = [{"cluster": c, **row} for c in behind for row in rows[c]]
            sessions = pa.array(sorted({row["session"] for row in new}), pa.string())
            data = table.to_pyarrow_dataset()
            names = ["cluster", "session", "to_node"]
            held = data.to_table(names, pc.field("session").isin(sessions)).to_pylist()
            known = {tuple(row.values()) for row in held}
            new = [
                row for row in new if (row["cluster"], row["session"], row["to_node"]) not in known
            ]
            added = pa.Table.from_pylist(new, schema=SCHEMAS[STREAMS])
            if not behind or self._commit(STREAMS, table, heads, added, behind, "append"):
                return

    def write_past(self, rows: Mapping[str, Iterable[PastRow]], epochs: Mapping[str, int]) -> None:
        """Append the rows that went, of epochs above the table's own."""
        for table, heads in self._attempts(PAST):
            behind = {c: epochs[c] for c in rows if epochs[c] > heads.of(c)}
            new = {c: [row for row in rows[c] if row.to_epoch > heads.of(c)] for c in behind}
            if not behind or self._commit(PAST, table, heads, _past(new), behind, "append"):
                return

    def write_current(
        self, rows: Mapping[str, Mapping[str, HeldRows]], epochs: Mapping[str, int]
    ) -> None:
        """Replace the clusters' rows where theirs are older."""
        for table, heads in self._attempts(CURRENT):
            new = {name: rows[name] for name in rows if epochs[name] > heads.of(name)}
            behind = {cluster: epochs[cluster] for cluster in new}
            if not new or self._commit(CURRENT, table, heads, _current(new), behind, "overwrite"):
                return

    def write_changes(
        self,
        changes: Mapping[str, Mapping[Key, Held | None]],
        epochs: Mapping[str, int],
    ) -> None:
        """Append the rows that changed, None for one that is gone, where the table is older."""
        for table, heads in self._attempts(CHANGES):
            behind = {c: epochs[c] for c in changes if epochs[c] > heads.of(c)}
            new = _changes({cluster: changes[cluster] for cluster in behind}, epochs)
            if not behind or self._commit(CHANGES, table, heads, new, behind, "append"):
                return

    def changed(self, clusters: Iterable[str]) -> set[str]:
        """Those of which the table of changes has, or had, rows."""
        asked = list(clusters)
        heads = self._open(CHANGES)[1] if asked else None
        return {cluster for cluster in asked if heads and heads.of(cluster)}

    def forget_changes(self, epochs: Mapping[str, int]) -> bool:
        """``placements`` has all up to these epochs now. False when another process came first; some that
        stay do no harm. Those of later epochs are of another job, which has written no rows of them yet.
        """
        written = (f"(cluster = '{c}' AND changed_epoch <= {epoch})" for c, epoch in epochs.items())
        try:
            existing_table(self.store, CHANGES).delete(" OR ".join(written))
        except CommitFailedError:
            return False
        return True

    def write_summaries(self, images: Mapping[str, Image]) -> dict[str, Exception]:
        """Replace the clusters' rows in each of the tables where theirs are older, and may be others.

        A cluster whose rows cannot be made keeps what the tables have of it, and is given with what went wrong.
        """
        failed: dict[str, Exception] = {}
        try:
            made = self._made(images)
        except Exception as of_any:  # which cluster's it is says its own try
            failed = self._failed(images)
            if not failed:
                raise of_any from None
            images = {c: image for c, image in images.items() if c not in failed}
            made = self._made(images)
        for name, (new, new_images) in made.items():
            if name == BALANCE:
                self._write_balance(new, new_images)
            else:
                self._write_summary(name, new, new_images)
        self._summarized |= images
        return failed

    def _failed(self, images: Mapping[str, Image]) -> dict[str, Exception]:
        failed: dict[str, Exception] = {}
        for cluster, image in images.items():
            try:
                self._made({cluster: image})
            except Exception as error:  # whatever it is, it is of this cluster alone
                failed[cluster] = error
        return failed

    def _made(self, images: Mapping[str, Image]) -> dict[str, tuple[pa.Table, dict[str, Image]]]:
        """By table the rows that may be others than before, and the images from which they follow."""
        made: dict[str, tuple[pa.Table, dict[str, Image]]] = {}
        for name, summary in SUMMARIES.items():
            new = {c: i for c, i in images.items() if changed(summary, self._summarized.get(c), i)}
            rows = [
                row for cluster in sorted(new) for row in rows_of(summary, cluster, new[cluster])
            ]
            made[name] = pa.Table.from_pylist(rows, schema=summary.schema), new
        spread = {c: i for c, i in images.items() if self._is_spread_anew(c, i)}
        rows = [row for cluster in sorted(spread) for row in balance.rows(cluster, spread[cluster])]
        made[BALANCE] = pa.Table.from_pylist(rows, schema=SCHEMAS[BALANCE]), spread
        return {name: (table, new) for name, (table, new) in made.items() if new}

    def _is_spread_anew(self, cluster: str, image: Image) -> bool:
        before = self._summarized.get(cluster)
        return before is None or any(
            getattr(before, domain) is not getattr(image, domain)
            for domain in ("ring", "membership")
        )

    def _write_balance(self, new: pa.Table, images: Mapping[str, Image]) -> None:
        """Append how even the clusters are, at epochs above the table's own."""
        for table, heads in self._attempts(BALANCE):
            behind = {c: i.epoch for c, i in images.items() if i.epoch > heads.of(c)}
            if not behind or self._commit(
                BALANCE, table, heads, _of_clusters(new, behind), behind, "append"
            ):
                return

    def _write_summary(self, name: str, new: pa.Table, images: Mapping[str, Image]) -> None:
        for table, heads in self._attempts(name):
            behind = {c: i.epoch for c, i in images.items() if i.epoch > heads.of(c)}
            if not behind:
                return
            rows = _of_clusters(new, behind)
            kept = _kept(table, SUMMARIES[name], rows, behind)
            if self._commit(
                name, table, heads, pa.concat_tables([rows, *kept]), behind, "overwrite"
            ):
                return

    def _attempts(self, name: str) -> Iterator[tuple[DeltaTable, Heads]]:
        for _ in range(ATTEMPTS):
            yield self._open(name)
        raise Conflict(f"Another process wrote to {self.store.uri(name)} first, {ATTEMPTS} times.")

    def _open(self, name: str) -> tuple[DeltaTable, Heads]:
        table = existing_table(self.store, name)
        return table, self._heads.read(name, table)

    def _commit(
        self,
        name: str,
        table: DeltaTable,
        heads: Heads,
        rows: pa.Table,
        epochs: Mapping[str, int],
        mode: str,
    ) -> bool:
        """As ``commit``."""
        is_made = commit(table, rows, epochs, mode)
        if is_made:
            self._heads.committed(name, heads, epochs)
        return is_made


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


def _of_clusters(rows: pa.Table, clusters: Iterable[str]) -> pa.Table:
    return rows.filter(pc.field("cluster").isin(sorted(clusters)))


def _kept(
    table: DeltaTable, summary: Summary, rows: pa.Table, clusters: Iterable[str]
) -> list[pa.Table]:
    """Rows of the table that the images have forgotten, of a summary that keeps them."""
    if not summary.key:
        return []
    known = {*zip(*(rows[name].to_pylist() for name in ("cluster", summary.key)), strict=True)}
    mine = pc.field("cluster").isin(sorted(clusters))
    old = table.to_pyarrow_dataset().to_table(filter=mine).to_pylist()
    left = [row for row in old if (row["cluster"], row[summary.key]) not in known]
    return [pa.Table.from_pylist(left, schema=summary.schema)]


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
