"""Publishes the changes of each captured table to its topic, in the order of their times.

Each change is in the topic at least once. A failure to read or send
the changes of one table is retried, and does not stop the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from prometheus_client import Counter, Gauge

from stele.cdc_connector.envelope import record_of
from stele.cdc_connector.settings import CdcConnectorSettings
from stele.cdc_connector.topic import TableTopic
from stele.domain.image import Image
from stele.domain.rules.cdc import cdc_of
from stele.log.follower import LogFollower
from stele.runtime.answers.common import ErrorBody
from stele.runtime.answers.node import ChangesView
from stele.runtime.logs import get_logger
from stele.runtime.metrics import REGISTRY
from stele.runtime.transport import FAILURES, Transport, answer_of

PAGE: Final = 500
REQUEST_S: Final = 30.0
RETRY_S: Final = 1.0
RESTARTS: Final = {
    "cdc_cursor_expired": "changes may be missing in the topic",
    "bad_cursor": "all changes are published again: a foreign record had another cursor",
}
"""Answers to a cursor after which a table is published from its oldest change, and their meaning."""

log = get_logger(__name__)


PUBLISHED: Final = Counter(
    "stele_cdc_connector_changes",
    "Changes that the brokers have acknowledged, by table.",
    ["table"],
    registry=REGISTRY,
)
LAG: Final = Gauge(
    "stele_cdc_connector_lag_seconds",
    "Age of the time up to which a table is published. The confidence window is its least value.",
    ["table"],
    registry=REGISTRY,
)
FAILED: Final = Counter(
    "stele_cdc_connector_failures",
    "Reads and sends that failed and are repeated, by table.",
    ["table"],
    registry=REGISTRY,
)


class ChangesUnavailable(Exception):
    """No node answered with changes. ``code`` is that of the last refusal."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class Publisher:
    """Runs a task for each captured table."""

    def __init__(
        self, settings: CdcConnectorSettings, follower: LogFollower, transport: Transport
    ) -> None:
        self._settings = settings
        self._follower = follower
        self._transport = transport
        self._tasks = dict[str, asyncio.Task[None]]()
        self.troubles = dict[str, str]()
        """Why a table is not published at present, by table."""

    async def run(self) -> None:
        """Follow the schema: begin with new captured tables, and end with those that are gone."""
        try:
            while True:
                wanted = {*captured_tables(self._follower.image)}
                for table in self._tasks.keys() - wanted:
                    self._tasks.pop(table).cancel()
                    self.troubles.pop(table, None)
                for table in wanted - self._tasks.keys():
                    task = asyncio.create_task(self._publish(table), name=f"publish {table}")
                    self._tasks[table] = task
                await asyncio.sleep(self._settings.cdc_poll_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _publish(self, table: str) -> None:
        settings = self._settings
        topic = TableTopic(
            settings.brokers, settings.topic_prefix + table, settings.cdc_record_bytes
        )
        cursor: str | None = None
        try:
            while True:
                try:
                    if cursor is None:
                        cursor = await asyncio.to_thread(self._begin, topic)
                    page = await self._read(table, cursor)
                    await self._send(topic, table, page, cursor)
                    self.troubles.pop(table, None)
                    cursor = page.cursor
                    self._measure(table, page)
                except Exception as error:  # a task that ended would stop its table unnoticed
                    cursor = self._after_failure(table, error, cursor)
                    await asyncio.sleep(RETRY_S)
                    continue
                if not page.more:
                    await asyncio.sleep(settings.cdc_poll_s)
        finally:
            await asyncio.to_thread(topic.close)

    def _begin(self, topic: TableTopic) -> str:
        settings = self._settings
        topic.create(
            settings.cdc_partitions, settings.kafka_replication_factor, settings.cdc_record_bytes
        )
        return topic.newest_cursor()

    def _after_failure(self, table: str, error: Exception, cursor: str | None) -> str | None:
        """Record why a table is not published, and return the cursor to try again with."""
        FAILED.labels(table).inc()
        code = error.code if isinstance(error, ChangesUnavailable) else ""
        if code in RESTARTS:
            log.warning(RESTARTS[code], table=table, why=str(error))
            return ""
        why = str(error.args[0] if error.args else error)
        if self.troubles.get(table) != why:
            log.warning("a table is not published at present", table=table, why=why)
        self.troubles[table] = why
        return cursor

    async def _send(self, topic: TableTopic, table: str, page: ChangesView, after: str) -> None:
        data = self._follower.image.schema.serving(table)
        options = None if data is None else cdc_of(self._follower.image.schema, data.data_id)
        preimage, now_ms = options is not None and options.preimage, time.time_ns() // 1_000_000
        records = [
            record_of(change, self._settings.cluster, table, now_ms, preimage=preimage)
            for change in page.changes
        ]
        if records:
            # The cursor before the page: if a part of the page is missing, a restart repeats it.
            await asyncio.to_thread(topic.send, records, after)

    def _measure(self, table: str, page: ChangesView) -> None:
        PUBLISHED.labels(table).inc(len(page.changes))
        LAG.labels(table).set(time.time() - page.complete_to_us / 1e6)

    async def _read(self, table: str, cursor: str) -> ChangesView:
        """Return a page of changes from the first node that has one. Raises ChangesUnavailable."""
        asked = {"table": table, "after": cursor, "limit": str(PAGE)}
        why, code = "the cluster has no members", ""
        for address in _addresses(self._follower.image):
            url = f"{address.rstrip('/')}/v1/cdc/changes"
            try:
                answer = await answer_of(self._transport, url, REQUEST_S, asked)
                if answer.ok:
                    return msgspec.json.decode(answer.body, type=ChangesView)
                refused = msgspec.json.decode(answer.body, type=ErrorBody)
            except (*FAILURES, msgspec.MsgspecError) as error:
                why = f"{address}: {error!r}"
                continue
            why, code = f"{address}: {refused.message}", refused.code
            if code in RESTARTS:
                break
        raise ChangesUnavailable(why, code)


def captured_tables(image: Image) -> Iterator[str]:
    """Yield the names of the tables with a change log that serve requests."""
    for data in image.schema.all_data():
        if cdc_of(image.schema, data.data_id) is not None and not data.dropped_version:
            yield data.name


def _addresses(image: Image) -> list[str]:
    return [node.address for node in image.membership.normal().values() if node.address]
