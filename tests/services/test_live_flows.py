"""Shutdown of the two services that read live flows with Faust, as processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stele.runtime.service import EXIT_OK
from tests.deployment.process import Start
from tests.polling import until
from tests.services.world import LogWriter

pytestmark = pytest.mark.broker

STARTS = "TailConsumer]: Starting"
END_LIMIT_S = 150.0


@pytest.mark.parametrize("module", ["session_guard", "tablet_balancer"])
async def test_service_ends_when_stopped_while_its_reader_starts(
    writer: LogWriter, start: Start, module: str
) -> None:
    """A recovery may stop a process while it starts."""
    service = await start(module)
    said = service.process.command.stderr
    assert await service.stop() == EXIT_OK
    before = said.stat().st_size
    starting = asyncio.create_task(service.start())

    def its_reader_starts() -> bool:
        return STARTS in _from(said, before)

    await until(its_reader_starts, "the reader to start", END_LIMIT_S)
    service.process.terminate()
    code = await asyncio.to_thread(service.process.wait, END_LIMIT_S)
    await asyncio.gather(starting, return_exceptions=True)
    assert code == EXIT_OK, service.process.tail()


def _from(file: Path, offset: int) -> str:
    return file.read_bytes()[offset:].decode()
