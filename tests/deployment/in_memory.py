"""A metadata-log whose log is in memory, served over HTTP from the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from msgspec.structs import replace

from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import Image
from stele.domain.model.schema_objects import SchemaVersion
from stele.domain.model.topology import Advance
from stele.log.codec import encode_epoch
from stele.metadata_log.http import MetadataLogApi
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.runtime.answers.session_guard import SchemaAgreement
from stele.runtime.http import Health, bind, build_app, serving
from tests.domain.history import History, join, three_nodes
from tests.log.memory import MemoryLog, MemoryPartition

SETTINGS = MetadataLogSettings(cluster="demo")


class Site:
    """A metadata-log in memory, which is given the epochs of a history one after another.

    ``writer`` and ``http`` are those of the process that served last.
    """

    def __init__(self, history: History) -> None:
        self.partition = MemoryPartition()
        self.history = history
        self.given = 0
        self.agreements = list[tuple[int, int]]()
        """Epochs whose agreement was asked for, and the limits of the waits, in seconds."""
        self.writer: Writer
        self.http: httpx.AsyncClient

    @property
    def image(self) -> Image:
        return self.history.images[self.given]

    async def _agreement(self, epoch: int, wait_s: int) -> SchemaAgreement:
        """Answer as a session-guard that waits for ``n3``."""
        self.agreements.append((epoch, wait_s))
        version = SchemaVersion(epoch)
        return SchemaAgreement(
            epoch=epoch, schema_version=version, agreed=False, behind=("n3",), members=()
        )

    def give(self, count: int) -> None:
        for epoch in self.history.epochs[self.given : self.given + count]:
            record = self.partition.append(encode_epoch(epoch))
            for follower in self.partition.followers:
                follower([record])
            self.given += 1

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """The address at which it is served inside the block."""
        self.writer = writer = Writer(MemoryLog(self.partition), SETTINGS)
        await writer.start()
        api = MetadataLogApi(writer, SETTINGS, agreement=self._agreement)
        app = build_app("metadata-log", api.routes(), lambda: Health(ok=True), plain=api.plain())
        try:
            async with (
                serving(app, bind("127.0.0.1", port), grace_s=0.1) as url,
                httpx.AsyncClient(base_url=url, timeout=240) as self.http,
            ):
                yield url
        finally:
            await writer.close()

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def all_rows(self, path: str, name: str, **params: Any) -> list[Any]:
        """The rows of all pages of a question."""
        rows, page = list[Any](), await self.get(path, **params)
        while True:
            rows.extend(page[name])
            if not page["next_cursor"]:
                return rows
            page = await self.get(path, **params, cursor=page["next_cursor"])


def joining_fourth() -> History:
    """Three nodes with a keyspace; a fourth is joining."""
    history, _ = three_nodes()
    history.enable(SCHEMA_OBJECTS)
    fourth = replace(join(4, "r1"), num_tokens=8, supported_features=(SCHEMA_OBJECTS,))
    assert history.apply(fourth, "join-n4") is None
    topology = history.image.topology
    advance = Advance(
        term=topology.coordinator.term,
        version=topology.version,
        open=(("join-n4",),),
        fence=True,
    )
    assert history.apply(advance) is None
    assert history.image.topology.transitions
    return history


@asynccontextmanager
async def site_with_a_join() -> AsyncIterator[Site]:
    """It serves all of ``joining_fourth``."""
    site = Site(joining_fourth())
    site.give(len(site.history.epochs))
    async with site.serving():
        yield site
