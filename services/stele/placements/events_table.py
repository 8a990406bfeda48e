"""The table ``events``, which is the state: rows and heads in one numbered commit.

The process that comes second reads what the first one wrote, and judges again. Checkpoints and
boundaries of batches thus do not decide which rows are written. Other jobs, and commits that seemed
to fail, do no harm.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.log.fold import Start
from stele.placements import events
from stele.placements.fold import FRESH, EventsHead
from stele.placements.store import TableStore
from stele.placements.tables import EVENTS, NumberedTable, TableLost, attempts, existing_table

APP: Final = "stele-events"
EPOCHS_AT_ONCE: Final = 5_000
"""Epochs that are read at once when a cluster's image is rebuilt; limits memory."""

New = dict[str, events.NewRows]
"""New rows by cluster."""


class Events:
    """The table as this process has read it. Thread-safe.

    ``heads`` is the head of each cluster, ``snapshots`` the newest snapshot of those that have one.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._found: New = {}
        """Rows found by a commit other than a batch's. The next batch returns them."""
        self._commits = NumberedTable(store, EVENTS, APP)
        self._commits.number = self._commits.reopen()
        found = self._new_rows(pc.field("row_kind").isin([events.HEAD, events.SNAPSHOT]))
        self.heads: dict[str, EventsHead] = {}
        self.snapshots: dict[str, events.SnapshotRow] = {}
        self._note(found)
        self._check_whole()

    def append(
        self, records: DataFrame, stopped: frozenset[str], certain: Mapping[str, int]
    ) -> New:
        """Judge (cluster, offset, value), and write the rows above the heads in one commit.

        ``certain``: see ``fold.RecordJudge``. Return all rows that the table gained since the last call,
        from any process. Raises Conflict, TableLost, and the errors of Spark and the store.
        """
        with self._lock:
            merged, self._found = self._found, {}
            merge(merged, self.refresh())
            for _ in attempts(self._store, EVENTS):
                judge = events.judge(self.heads, stopped, certain)
                judged = records.mapInArrow(judge, events.SPARK_SCHEMA).toArrow()
                if self.commit(judged.cast(events.SCHEMA), merged):
                    break
        return merged

    def begin(self, cluster: str, start: Start) -> bool:
        """Continue a cluster after a snapshot. Return False when another process moved its head.

        Raises Conflict, TableLost, and the errors of the store.
        """
        with self._lock:
            head, rows = self.heads.get(cluster), events.snapshot_rows(cluster, start)
            for _ in attempts(self._store, EVENTS):
                if self.commit(rows, self._found):
                    break
                if self.heads.get(cluster) != head:
                    return False
        return True

    def note(self, rows: pa.Table) -> None:
        """Append rows that move no head.

        Waits for a batch that is being written. Raises as ``begin`` does.
        """
        with self._lock:
            for _ in attempts(self._store, EVENTS):
                if self.commit(rows, self._found):
                    return

    def image_of(self, cluster: str) -> Image | None:
        """Return the image of the newest snapshot; None when the events begin with the log.

        Raises TableLost.
        """
        snapshot = self.snapshots.get(cluster)
        if snapshot is None:
            return None
        wanted = (
            (pc.field("cluster") == cluster)
            & (pc.field("row_kind") == events.SNAPSHOT_FACT)
            & (pc.field("epoch") == snapshot.epoch)
            & (pc.field("state_id") == snapshot.state_id.hex())
        )
        rows = self._rows(wanted).to_pylist()
        image = events.image_of(snapshot, rows)
        if image is None:
            raise TableLost(
                f"{self._commits.uri} does not hold each fact of {cluster}'s snapshot of epoch"
                f" {snapshot.epoch} once. {_REMEDY}"
            )
        return image

    def epochs_of(self, cluster: str) -> Iterator[Epoch]:
        """Yield a cluster's epochs up to its head, from the first one or after the newest
        snapshot.
        """
        last = self.heads.get(cluster, FRESH).epoch
        rows = existing_table(self._store, EVENTS).to_pyarrow_dataset()
        of_epochs = pc.field("row_kind").isin([events.EPOCH, events.FACT])
        wanted = (pc.field("cluster") == cluster) & of_epochs
        for first in range(self._begun(cluster) + 1, last + 1, EPOCHS_AT_ONCE):
            end = min(first + EPOCHS_AT_ONCE, last + 1)
            these = wanted & (pc.field("epoch") >= first) & (pc.field("epoch") < end)
            yield from events.new_rows(rows.to_table(filter=these))[cluster].epochs

    def refresh(self) -> New:
        """Read the commits of other processes. Raises TableLost."""
        number = self._commits.reopen()
        if number == self._commits.number:
            return {}
        self._commits.number = number
        heads = self._new_rows(pc.field("row_kind") == events.HEAD)
        if gone := sorted(set(self.heads) - set(heads)):
            raise TableLost(f"{self._commits.uri} holds nothing of {', '.join(gone)} any more.")
        found: New = {}
        for cluster, rows in heads.items():
            before = self.heads.get(cluster, FRESH)
            if rows.head is not None and rows.head != before:
                mine, since = pc.field("cluster") == cluster, pc.field("log_offset")
                is_new = (since >= before.next_offset) | (pc.field("epoch") > before.epoch)
                found |= self._new_rows(mine & is_new)
        self._note(found)
        return found

    def commit(self, rows: pa.Table, merged: New) -> bool:
        """Commit, and add the new rows to ``merged``. Return False when others committed first."""
        for _ in attempts(self._store, EVENTS):
            if not rows.num_rows:
                return True
            if self._commits.append(rows):
                found = events.new_rows(rows)
                self._note(found)
                merge(merged, found)
                return True
            number = self._commits.number
            merge(merged, self.refresh())
            if self._commits.number != number:
                return False
        return False

    def _note(self, found: Mapping[str, events.NewRows]) -> None:
        self.heads = self.heads | {c: rows.head for c, rows in found.items() if rows.head}
        self.snapshots = self.snapshots | {
            c: rows.snapshot for c, rows in found.items() if rows.snapshot
        }

    def _begun(self, cluster: str) -> int:
        snapshot = self.snapshots.get(cluster)
        return 0 if snapshot is None else snapshot.epoch

    def _check_whole(self) -> None:
        """Check that each epoch of each cluster exists once, from its beginning to its head.

        Raises TableLost.
        """
        rows = self._rows(pc.field("row_kind") == events.EPOCH, ["cluster", "epoch"])
        wrong = set(rows["cluster"].unique().to_pylist()) - set(self.heads)
        for cluster, head in self.heads.items():
            epochs = rows.filter(pc.field("cluster") == cluster)["epoch"]
            behind = epochs.filter(pc.greater(epochs, self._begun(cluster)))
            each_once = pc.count_distinct(epochs).as_py() == len(epochs)
            if not each_once or len(behind) != head.epoch - self._begun(cluster):
                wrong.add(cluster)
        if wrong:
            raise TableLost(
                f"{self._commits.uri} does not hold each epoch of {', '.join(sorted(wrong))} once: rows"
                f" were lost or changed. {_REMEDY}"
            )

    def _new_rows(self, wanted: pc.Expression) -> New:
        return events.new_rows(self._rows(wanted))

    def _rows(self, wanted: pc.Expression, columns: list[str] | None = None) -> pa.Table:
        return self._commits.table.to_pyarrow_dataset().to_table(columns, wanted)


_REMEDY: Final = "Remove the folder; the table is made again from the log."


def merge(into: New, more: Mapping[str, events.NewRows]) -> None:
    """Add the content of a later commit."""
    for cluster, rows in more.items():
        mine = into.setdefault(cluster, events.NewRows())
        mine.head = rows.head or mine.head
        mine.stopped = rows.stopped or mine.stopped
        mine.hole = rows.hole or mine.hole
        mine.elsewhere = rows.elsewhere or mine.elsewhere
        mine.snapshot = rows.snapshot or mine.snapshot
        mine.stray = rows.stray or mine.stray
        mine.epochs.extend(rows.epochs)
