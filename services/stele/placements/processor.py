"""The fold as a stateful operator: one state a cluster, kept by Spark in RocksDB.

The state is where the fold stands, and each placement's rows in one value: a batch reads and writes
only the placements that it changes.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from stele.log.errors import LogError
from stele.placements import schema
from stele.placements.decode import UNREADABLE
from stele.placements.fold import FRESH, Change, ClusterFold, HeldRows, LogRecord, Place
from stele.placements.rows import decode_rows, encode_rows, rows_out

COLUMNS = [part.split()[0] for part in schema.CHANGES_OUT.split(",")]

_changes = msgspec.json.Decoder(tuple[Change, ...])
_features = msgspec.json.Decoder(tuple[str, ...])


class FoldProcessor(StatefulProcessor):  # type: ignore[misc]  # pyspark is not checked
    """Offers a batch's records to ``ClusterFold`` by offset, and gives out what changed."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._place = handle.getValueState("place", schema.PLACE_STATE)
        self._rows = handle.getMapState("rows", schema.NAME_KEY, schema.ROWS_STATE)

    def handleInputRows(  # noqa: N802  (Spark's name)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        _timers: Any,
    ) -> Iterator[pd.DataFrame]:
        cluster = str(key[0])
        fold = ClusterFold(self._load_place(), self._load_rows)
        records = sorted(records_of(rows), key=lambda record: record.offset)
        try:
            for record in records:
                fold.offer(record)
        except LogError as error:
            raise RuntimeError(f"{UNREADABLE} Cluster {cluster}: {error}") from error
        self._store(fold)
        found = rows_out(cluster, fold)
        if found:
            # Not from dicts: pandas would put NaN, a float, where a column has nothing.
            cells = [[row.get(column) for column in COLUMNS] for row in found]
            yield pd.DataFrame(cells, columns=COLUMNS, dtype=object)

    def close(self) -> None:
        pass

    def _load_place(self) -> Place:
        found = self._place.get()
        return FRESH if found is None else Place(int(found[0]), bytes(found[1]), int(found[2]))

    def _load_rows(self, placement: str) -> HeldRows | None:
        found = self._rows.getValue((placement,))
        return None if found is None else decode_rows(bytes(found[0]))

    def _store(self, fold: ClusterFold) -> None:
        place = fold.place
        self._place.update((place.epoch, place.state_id, place.next_offset))
        for name, rows in fold.changed.items():
            if rows is None:
                self._rows.removeKey((name,))
            else:
                self._rows.updateValue((name,), (encode_rows(rows),))


def records_of(frames: Iterator[pd.DataFrame]) -> Iterator[LogRecord]:
    """The frames' rows, whose columns are those of ``decode.decode``."""
    for frame in frames:
        columns = [name for name in frame.columns if name != "cluster"]
        for values in zip(*(frame[name].tolist() for name in columns), strict=True):
            yield _record(dict(zip(columns, values, strict=True)))


def _record(found: dict[str, Any]) -> LogRecord:
    offset, previous = int(found["offset"]), bytes(found["prev_state_id"])
    if not found["readable"]:
        return LogRecord(offset=offset, prev_state_id=previous, readable=False)
    return LogRecord(
        offset=offset,
        prev_state_id=previous,
        epoch=int(found["epoch"]),
        state_id=bytes(found["state_id"]),
        request_id=found["request_id"],
        command=found["command"],
        actor=found["actor"],
        reason=found["reason"],
        origin=found["origin"],
        at_ms=int(found["at_ms"]),
        required_features=_features.decode(found["required_features"]),
        changes=_changes.decode(found["changes"]),
    )
