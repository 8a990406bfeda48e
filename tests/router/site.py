"""A metadata-log whose log is in memory, and is given to it epoch by epoch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stele.domain.image import Image
from stele.log.codec import encode_epoch
from stele.log.memory import MemoryLog, MemoryPartition
from stele.metadata_log.http import Api
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.runtime.http import Health, bind, build_app, serving
from tests.domain.history import History

SETTINGS = MetadataLogSettings(cluster="demo")


class Site:
    """A metadata-log in memory that is given epochs one after another."""

    def __init__(self, history: History) -> None:
        self.partition = MemoryPartition()
        self.history = history
        self.given = 0
        self.writer: Writer | None = None
        """Of the process that served last."""

    @property
    def image(self) -> Image:
        return self.history.images[self.given]

    def give(self, count: int) -> None:
        for epoch in self.history.epochs[self.given : self.given + count]:
            record = self.partition.append(encode_epoch(epoch))
            for follower in self.partition.followers:
                follower([record])
            self.given += 1

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        self.writer = writer = Writer(MemoryLog(self.partition), SETTINGS)
        await writer.start()
        api = Api(writer, SETTINGS)
        app = build_app("metadata-log", api.routes(), lambda: Health(ok=True), direct=api.direct())
        try:
            async with serving(app, bind("127.0.0.1", port), grace_s=0.1) as url:
                yield url
        finally:
            await writer.close()
