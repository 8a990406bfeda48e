"""A metadata-log without a broker, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.topology.commands import Advance
from stele.log.codec import encode_epoch
from stele.log.memory import MemoryLog, MemoryPartition
from stele.metadata_log.http import Api
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.runtime.http import Health, bind, build_app, serving
from tests.domain.history import History, join, three_nodes


class Site:
    """A metadata-log without a broker, and a client of it."""

    def __init__(self, writer: Writer, http: httpx.AsyncClient) -> None:
        self.writer = writer
        self.http = http

    @property
    def image(self) -> Image:
        return self.writer.image

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def all_rows(self, path: str, name: str, **params: Any) -> list[Any]:
        """All pages of a question, each decoded as its type."""
        rows, page = list[Any](), await self.get(path, **params)
        while True:
            rows.extend(page[name])
            if not page["next_cursor"]:
                return rows
            page = await self.get(path, **params, cursor=page["next_cursor"])


def past() -> History:
    """Three nodes with a keyspace; a fourth is joining."""
    history, _ = three_nodes()
    assert history.apply(replace(join(4, "r1"), num_tokens=8), "join-n4") is None
    image = history.image
    advance = Advance(
        term=image.topology.coordinator.term,
        version=image.topology.version,
        open=(("join-n4",),),
        fence=True,
    )
    assert history.apply(advance) is None
    assert history.image.topology.transitions
    return history


@asynccontextmanager
async def memory_site() -> AsyncIterator[Site]:
    """It serves ``past`` from memory."""
    partition = MemoryPartition()
    for epoch in past().epochs:
        partition.append(encode_epoch(epoch))
    settings = MetadataLogSettings(cluster="demo")
    writer = Writer(MemoryLog(partition), settings)
    await writer.start()
    api = Api(writer, settings)
    app = build_app("metadata-log", api.routes(), lambda: Health(ok=True), direct=api.direct())
    async with serving(app, bind("127.0.0.1", 0), grace_s=1) as url:
        async with httpx.AsyncClient(base_url=url, timeout=90) as http:
            yield Site(writer, http)
    await writer.close()
