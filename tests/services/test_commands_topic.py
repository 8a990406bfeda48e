"""Committed offsets, and the order of commands at the writer, without a broker."""

import asyncio
import random
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from stele.domain.commands import Envelope, SetSetting
from stele.domain.model.requests import named
from stele.log.codec import encode_envelope
from stele.log.record_builder import Pending
from stele.metadata_log.commands_topic import CommandsTopic, PartitionProgress, Received
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import BusyError, Writer

TIMEOUT_S = 240.0


def test_committed_offset_covers_only_answered_commands() -> None:
    progress = PartitionProgress()
    for offset in (5, 6, 7):
        progress.take(offset)
    seen = [progress.position]
    for offset in (6, 5, 4, 7):
        progress.done(offset)
        seen.append(progress.position)
    assert seen == [-1, -1, 7, 7, 8]
    assert progress.outstanding == 0


def test_answer_for_a_revoked_partition_commits_nothing() -> None:
    progress = PartitionProgress()
    progress.done(3)
    progress.take(5)
    progress.done(4)
    assert (progress.position, progress.outstanding) == (-1, 1)


@given(st.lists(st.integers(0, 30), unique=True, min_size=1).map(sorted), st.randoms())
def test_committed_offset_never_passes_an_unanswered_command(
    offsets: list[int], chance: random.Random
) -> None:
    progress, answered = PartitionProgress(), set[int]()
    for offset in offsets:
        progress.take(offset)
    order = list(offsets)
    chance.shuffle(order)
    for offset in order:
        progress.done(offset)
        answered.add(offset)
        behind = [o for o in offsets if all(p in answered for p in offsets if p <= o)]
        assert progress.position == (behind[-1] + 1 if behind else -1)


class BusyWriter:
    """A writer that is busy at first."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.taken: list[str] = []
        self.all_taken = asyncio.Event()
        self.failure = None

    def submit(self, envelope: Envelope) -> Pending:
        if self.refusals:
            self.refusals -= 1
            raise BusyError("full")
        self.taken.append(envelope.request_id)
        if len(self.taken) == 30:
            self.all_taken.set()
        return asyncio.get_running_loop().create_future()


async def test_commands_keep_their_order_while_the_writer_is_busy() -> None:
    """A batch that arrives while an earlier one waits must not overtake it."""
    writer = BusyWriter(3)
    topic = CommandsTopic(
        MetadataLogSettings(cluster="blue", kafka_bootstrap="127.0.0.1:1"), cast(Writer, writer)
    )
    names = [named(f"r{n}") for n in range(30)]
    received = [
        Received(
            0, n, None, encode_envelope(Envelope(request_id=name, command=SetSetting("a", str(n))))
        )
        for n, name in enumerate(names)
    ]
    for first in (0, 10, 20):
        topic._submit(received[first : first + 10])
        await asyncio.sleep(0)
    await asyncio.wait_for(writer.all_taken.wait(), TIMEOUT_S)
    assert writer.taken == names
    await topic.close()
