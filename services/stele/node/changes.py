"""Reads of change logs for consumers, and the removal of old changes.

Any member serves a read. It asks a quorum of the replicas of each range, and the union of their
rows is the log. A change is returned when its time is older than the confidence window. No write of
that time is acknowledged any more, so a consumer that goes on from its cursor misses no
acknowledged change. A cursor is a time, and all changes of a time are in one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from stele.agent.stores import parted
from stele.domain.image import Image
from stele.domain.model.cdc import GENERATION_LEEWAY_MS
from stele.domain.model.schema import Data
from stele.domain.rules.cdc import (
    WHOLE_RING,
    CdcOptions,
    ChangeStream,
    cdc_of,
    find_stream,
    stream_sets,
)
from stele.log.follower import LogFollower
from stele.node import metrics
from stele.node.cells import ROW, TOMBSTONE, RowContent, content_of
from stele.node.change_log import LoggedChange, merged
from stele.node.commits import StoreError
from stele.node.coordinate import Coordination, RequestRefused
from stele.node.store import SqliteStore
from stele.node.table_rows import TableRows, rows_of
from stele.runtime.answers.node import (
    ChangesView,
    ChangeView,
    StreamSetView,
    StreamsView,
    StreamView,
)
from stele.runtime.logs import get_logger

log = get_logger(__name__)

_CURSOR: Final = re.compile(r"[0-9a-fA-F]{1,16}")
MICROS_PER_MS: Final = 1000
MICROS_PER_S: Final = 1_000_000
LEEWAY_US: Final = MICROS_PER_MS * GENERATION_LEEWAY_MS
"""Allowed difference between the clocks of nodes, in microseconds."""
EXPIRE_EVERY_S: Final = 60.0
EXPIRE_ROWS: Final = 200
"""Changes that one transaction removes. Small writes wait for a few milliseconds meanwhile."""


class Changes:
    """Serves the change logs of a cluster from one member."""

    def __init__(self, coordination: Coordination, now_us: Callable[[], int]) -> None:
        self._coordination = coordination
        self._now_us = now_us

    async def streams(self, table: str) -> StreamsView:
        """Return the streams of a table by time. Raises RequestRefused."""
        image, data, _ = await self._captured(table)
        sets = stream_sets(image, data.data_id)
        return StreamsView(
            table,
            [
                StreamSetView(
                    each.generation_id, each.since_ms, each.until_ms, [*map(_shown, each.streams)]
                )
                for each in sets
            ],
        )

    async def read(self, table: str, stream_id: bytes, after: str, limit: int) -> ChangesView:
        """Return changes of a stream after a cursor, or of all streams if ``stream_id`` is empty.

        Raises RequestRefused.
        """
        image, data, options = await self._captured(table)
        stream = ChangeStream(b"", WHOLE_RING)
        if stream_id:
            stream = _found(image, data, stream_id)
        after_us = self._after_us(after, options, stream, image)
        last_us = MICROS_PER_MS * stream.until_ms - 1 if stream.until_ms else self._now_us()
        confident_us = self._now_us() - MICROS_PER_MS * self._coordination.window_ms
        upto_us, changes = min(last_us, confident_us), list[LoggedChange]()
        if after_us < upto_us:
            image, pages = await self._coordination.changes(
                table, stream.ranges, after_us, upto_us, limit
            )
            changes, after_us = merged(pages, limit)
        rows = rows_of(image, table)
        return ChangesView(
            changes=[_view(change, rows) for change in changes],
            cursor=f"{after_us:x}",
            complete_to_us=after_us,
            more=after_us < upto_us,
            ended=bool(stream.until_ms) and after_us >= last_us,
        )

    async def _captured(self, table: str) -> tuple[Image, Data, CdcOptions]:
        image, data = await self._coordination.serving(table)
        options = cdc_of(image.schema, data.data_id)
        if options is None:
            raise RequestRefused(
                409,
                "cdc_not_enabled",
                f"Table {table} has no change log.",
                f"Switch it on: `stele table alter {table} --cdc true`, or for a table with columns"
                f" `ALTER TABLE {table} WITH cdc = {{'enabled': 'true'}}`.",
            )
        return image, data, options

    def _after_us(self, after: str, options: CdcOptions, stream: ChangeStream, image: Image) -> int:
        """Return the time of a cursor, or the time before the stream without one. Raises RequestRefused."""
        begin_us = max(0, MICROS_PER_MS * stream.since_ms - 1)
        oldest_us = self._now_us() - MICROS_PER_S * options.ttl_s if options.ttl_s else 0
        if not after:
            return max(begin_us, oldest_us)
        after_us = int(after, 16) if _CURSOR.fullmatch(after) else -1
        # A stream may begin later, and its cursor too. No answer has a cursor after that.
        newest_us = MICROS_PER_MS * max((g.since_ms for g in image.cdc.committed()), default=0)
        if not 0 <= after_us <= max(self._now_us() + LEEWAY_US, newest_us):
            raise RequestRefused(
                400,
                "bad_cursor",
                f"'{after[:40]}' is no cursor of this table up to now.",
                "Give the cursor of an earlier answer, or none.",
            )
        if max(after_us, begin_us) < oldest_us:
            raise RequestRefused(
                410,
                "cdc_cursor_expired",
                f"Changes after this cursor may be gone: they are kept for {options.ttl_s} s.",
                "Read the whole table, then read changes without a cursor.",
            )
        return max(after_us, begin_us)


def _found(image: Image, data: Data, stream_id: bytes) -> ChangeStream:
    stream = find_stream(image, data.data_id, stream_id)
    if stream is None:
        raise RequestRefused(
            404,
            "unknown_stream",
            f"There is no stream {stream_id.hex()[:40]} of this table.",
            "`/v1/cdc/streams?table=` lists the streams.",
        )
    return stream


def _shown(stream: ChangeStream) -> StreamView:
    return StreamView(stream.stream_id.hex(), [(r.start, r.end) for r in stream.ranges])


def _view(change: LoggedChange, rows: TableRows | None) -> ChangeView:
    before = change.before
    if change.kind != ROW or rows is None:
        return ChangeView(
            time_us=change.time_us,
            key=change.key,
            operation="delete" if change.kind == TOMBSTONE else "put",
            value=None if change.kind == TOMBSTONE else change.value,
            before=None if before is None or before.kind == TOMBSTONE else before.value,
        )
    key, content = rows.key_of(change.key), content_of(change.value)
    replaced = RowContent() if before is None else content_of(before.value)
    return ChangeView(
        time_us=change.time_us,
        key=change.key,
        operation="put" if content.columns else "delete",
        row={**key, **rows.values_of(content)},
        # A row that was deleted before has no columns.
        row_before={**key, **rows.values_of(replaced)} if replaced.columns else None,
    )


# Removal of changes that are older than the table keeps them.


async def expire(store: SqliteStore, image: Image, now_us: int) -> int:
    """Delete the changes of this node that are too old, and return how many. Raises StoreError.

    A log is deleted as a whole if its table has no parameter ``cdc`` any more.
    """
    deleted = 0
    for partition in await store.change_logs():
        data_id, _ = parted(partition)
        if image.schema.of_data(data_id) is None:
            continue  # dropped or truncated: an order deletes it
        options = cdc_of(image.schema, data_id)
        if options is not None and not options.ttl_s:
            continue
        before_us = now_us if options is None else now_us - MICROS_PER_S * options.ttl_s
        keys = EXPIRE_ROWS
        while keys == EXPIRE_ROWS:
            keys = (await store.delete_changes(partition, before_us, EXPIRE_ROWS)).keys
            deleted += keys
    return deleted


@asynccontextmanager
async def expiring(
    store: SqliteStore, follower: LogFollower, now_us: Callable[[], int]
) -> AsyncIterator[None]:
    """Remove old changes in the background inside the block."""

    async def run() -> None:
        while True:
            try:
                metrics.expired_changes.inc(await expire(store, follower.image, now_us()))
            except StoreError as error:  # a full disk, for example: the next time may succeed
                log.warning("old changes could not be removed", why=str(error))
            await asyncio.sleep(EXPIRE_EVERY_S)

    task = asyncio.create_task(run(), name="expiry of changes")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
