"""How long a metadata-log's event loop stands still while decisions of seconds are made, in it and in a thread:
python -m benchmarks.decisions

Two nodes of 1,024 tokens join 300 others, five replications, on a log in memory. The commands of the beginning
of that are recorded first, and then committed twice. One JSON line for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from typing import Final

from stele.domain.commands import Envelope, Rejection
from stele.domain.image import Image
from stele.log import record_builder
from stele.log.fold import Fold, Start
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer as Service
from tests.log.driven import Driven
from tests.log.memory import MemoryLog, MemoryPartition
from tests.log.test_large_rings import JOINING, join_of, large_ring
from tests.log.test_pipeline import Writer

STEPS: Final = 7
"""Of the coordinator: it opens the transition, and enters the states up to the one that streams."""
LOOK_S: Final = 0.005
COMMIT_S: Final = 120.0
WAYS: Final = {"in the event loop": 1_000_000_000, "in a thread": record_builder.LARGE_ROWS}
"""Rows from which on a decision is made in a thread."""


class Recorded(Driven):
    """Keeps what is asked for, by whomever."""

    def __init__(self, writer: Writer) -> None:
        self.asked: list[Envelope] = []
        super().__init__(writer)

    def submit(self, envelope: Envelope) -> Rejection | None:
        self.asked.append(envelope)
        return super().submit(envelope)


def commands_of(image: Image) -> list[Envelope]:
    """The joins, and what the coordinator asks for until they stream."""
    writer = Writer("first", MemoryPartition())
    writer.pipeline.fold = Fold(image)
    cluster = Recorded(writer)
    for name in JOINING:
        cluster.ask(join_of(name))
    with suppress(AssertionError):  # it is not at its end after so few steps
        cluster.run(STEPS)
    return cluster.asked


async def commit(image: Image, asked: list[Envelope]) -> list[float]:
    """How late the loop was at each look, while all is committed one after the other; seconds."""
    late_s = list[float]()

    async def look() -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(LOOK_S)
            late_s.append(time.perf_counter() - began_s - LOOK_S)

    settings = MetadataLogSettings(cluster="blue")
    service = Service(MemoryLog(MemoryPartition()), settings, start=Start(image, 0))
    await service.start()
    looking = asyncio.create_task(look())
    for envelope in asked:
        await service.commit(envelope, COMMIT_S)
    looking.cancel()
    await service.close()
    return late_s


def main() -> None:
    image = large_ring()
    asked = commands_of(image)
    for way, rows in WAYS.items():
        record_builder.LARGE_ROWS = rows  # type: ignore[misc]
        began_s = time.perf_counter()
        late_s = asyncio.run(commit(image, asked))
        found = {
            "decided": way,
            "commands": len(asked),
            "all_s": round(time.perf_counter() - began_s, 2),
            "longest_without_a_turn_s": round(max(late_s), 3),
            "turns": len(late_s),
            "load": os.getloadavg()[0],
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
