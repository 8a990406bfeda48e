"""The table ``progress``: how far the job is behind each cluster's topic, at every stage.

Only this table contains the end of the topic. A row is replaced when it has changed, at most every
``WRITE_S``, and every ``STILL_S`` otherwise. A missing job is detected by ``looked_at``.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.placements.store import TableStore, in_clusters
from stele.placements.tables import PROGRESS, SCHEMAS, existing_table, open_table

WRITE_S: Final = 10.0
STILL_S: Final = 60.0

Row = dict[str, Any]
"""The columns of the table except ``looked_at``."""


def row_of(
    cluster: str,
    end: int,
    next_offset: int,
    judged: int,
    published: int | None,
    tables: int | None,
) -> Row:
    """Return the row of a cluster. Pure.

    ``end`` is the offset after the topic's newest record, ``next_offset`` that of the first record
    that was not judged. The others are epochs; None for what this process has not brought up to
    date yet.
    """
    return {
        "cluster": cluster,
        "topic_end": end,
        "judged_to": next_offset,
        "records_behind": max(0, end - next_offset),
        "judged_epoch": judged,
        "published_epoch": published,
        "published_behind": None if published is None else max(0, judged - published),
        "tables_epoch": tables,
        "tables_behind": None if tables is None else max(0, judged - tables),
    }


class ProgressTable:
    """Writes the table. For one thread."""

    def __init__(self, store: TableStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._written: dict[str, Row] = {}
        self._written_s = clock() - STILL_S
        open_table(store, PROGRESS)

    def is_due(self) -> bool:
        return self._clock() - self._written_s >= WRITE_S

    def write(self, rows: Mapping[str, Row]) -> bool:
        """Replace the rows of these clusters.

        Return False when they are unchanged, or another process came first.

        A later write suffices in that case. Raises TableLost, DeltaError, OSError.
        """
        is_still = self._clock() - self._written_s < STILL_S
        if not rows or (is_still and rows == self._written):
            return False
        looked_at = datetime.now(UTC)
        told = [{**row, "looked_at": looked_at} for row in rows.values()]
        try:
            write_deltalake(
                existing_table(self._store, PROGRESS),
                pa.Table.from_pylist(told, schema=SCHEMAS[PROGRESS]),
                mode="overwrite",
                predicate=in_clusters(rows),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            return False
        self._written, self._written_s = dict(rows), self._clock()
        return True
