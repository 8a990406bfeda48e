"""The writer over a faulty log: lost records get an outcome in any case."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from msgspec.structs import replace

from stele.domain.commands import Envelope, Outcome, SetSetting
from stele.domain.model.requests import named
from stele.domain.not_taken import OTHER_LOG
from stele.domain.registry import KNOWN_FEATURES
from stele.log.chain import STATE_ID
from stele.log.errors import LostWinnersError
from stele.log.follower import Floor
from stele.log.port import Ends, Record
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import (
    FIRST_PAUSE_S,
    FIRST_WINDOW_S,
    BusyError,
    ReaderStoppedError,
    Writer,
)
from tests.log.memory import MemoryLog, MemoryPartition
from tests.polling import until

TIMEOUT_S = 240.0
LOST = 12
"""The record and eleven NOOPs for its decision: three seconds, in which the lag is queried."""
MANY: Final = 2_000
"""Requests. These take twenty seconds, in which a record silent for 0.3 s gets a forced outcome."""
WAY_S: Final = 0.005
ASKED: Final = 5
EVERY: Final = 40
Result = Outcome | Exception
TASKS = set[asyncio.Task[None]]()


class LossyLog(MemoryLog):
    """Loses the next appends on request, and then has no leader that reports the end."""

    def __init__(self, partition: MemoryPartition) -> None:
        super().__init__(partition)
        self.lose = 0
        self.leaderless = False

    def append(self, value: bytes, key: bytes | None = None) -> None:
        if self.lose:
            self.lose -= 1
            return
        super().append(value, key)

    async def ends(self) -> Ends:
        if self.leaderless:
            raise TimeoutError("no leader")
        return await super().ends()


async def test_lost_record_is_decided_again_without_a_partition_leader() -> None:
    log = LossyLog(MemoryPartition())
    writer = Writer(log, MetadataLogSettings(cluster="demo", unknown_after_s=0.1, found="auto"))
    await writer.start()
    log.lose, log.leaderless = LOST, True
    envelope = Envelope(request_id=named("once"), command=SetSetting("colour", "red"))
    outcome = await writer.commit(envelope, TIMEOUT_S)
    assert outcome.applied
    assert writer.image.features.settings["colour"] == "red"
    again = await writer.commit(envelope, TIMEOUT_S)
    assert (again.epoch, again.state_id) == (outcome.epoch, outcome.state_id)
    await writer.close()


@pytest.mark.parametrize("features", ["all", "none"])
async def test_new_cluster_has_the_features_of_its_build(features: Any) -> None:
    """A setting or a dump may choose other features."""
    settings = MetadataLogSettings(cluster="demo", found="auto", found_features=features)
    writer = Writer(MemoryLog(MemoryPartition()), settings)
    await writer.start()
    wanted = tuple(sorted(KNOWN_FEATURES)) if features == "all" else ()
    assert writer.image.features.enabled == wanted
    await writer.close()


async def test_lost_record_gets_an_outcome_while_later_records_arrive() -> None:
    partition = MemoryPartition()
    settings = MetadataLogSettings(cluster="demo", unknown_after_s=1.0, found="auto")
    log, other = LossyLog(partition), LossyLog(partition)
    writer, second = Writer(log, settings), Writer(other, settings)
    await writer.start()
    await second.start()
    log.lose = other.lose = 1
    told, asked = list[Result](), 0
    while not told:
        for each in (writer, second):
            asked += 1
            await begin(each, f"number{asked}", told)
        await asyncio.sleep(0.02)
        assert asked < MANY, "nobody is told anything while somebody asks"
    await until(lambda: len(told) == asked, "all are told")
    assert all(isinstance(result, Outcome) and result.applied for result in told)
    await writer.close()
    await second.close()


async def test_yielding_writer_appends_nothing_after_its_reader_failed() -> None:
    """A command that waits for another writer fails with an unknown outcome."""
    partition, told = MemoryPartition(), list[Result]()
    writer = Writer(MemoryLog(partition), MetadataLogSettings(cluster="demo", found="auto"))
    other = MemoryLog(partition)
    await writer.start()
    won = partition.records[-1].value
    other.append(won[: STATE_ID.start] + bytes(16) + won[STATE_ID.stop :])
    await until(lambda: writer.losers == 1, "the other's record to lose")
    await begin(writer, "held", told)
    other.append(b"no record")
    await until(lambda: told, "the end")
    assert [type(each) for each in told] == [ReaderStoppedError]
    await asyncio.sleep(2 * FIRST_WINDOW_S)
    assert partition.records[-1].value == b"no record"
    await writer.close()


class SlowLog(MemoryLog):
    """A log with latency for each record, in both directions."""

    def __init__(self, partition: MemoryPartition) -> None:
        super().__init__(partition)
        self.appended = 0
        self._lands_s = 0.0

    def append(self, value: bytes, key: bytes | None = None) -> None:
        self.appended += 1
        self._lands_s = max(self._lands_s + 1e-6, self._loop.time() + WAY_S)
        self._loop.call_at(self._lands_s, self._land, value)

    def _land(self, value: bytes) -> None:
        record = self._partition.append(value)
        for follower in self._partition.followers:
            self._loop.call_later(WAY_S, follower, [record])


async def test_second_writer_commits_beside_a_busy_writer() -> None:
    """The busy writer always has chained records in flight."""
    partition = MemoryPartition()
    settings = MetadataLogSettings(cluster="demo", found="auto")
    busy, log = SlowLog(partition), SlowLog(partition)
    writer, second = Writer(busy, settings), Writer(log, settings)
    await writer.start()
    await second.start()
    steady, told, asked = list[Result](), list[Result](), 0
    while len(told) < ASKED:
        if asked % EVERY == 0 and asked < ASKED * EVERY:
            await begin(second, f"other{asked}", told)
        asked += 1
        await begin(writer, f"number{asked}", steady)
        assert asked < MANY, (
            f"{len(told)} of {ASKED} were told, while {len(steady)} were of another"
        )
        await asyncio.sleep(WAY_S / 2)
    await until(lambda: len(steady) == asked, "all are told")
    assert all(isinstance(result, Outcome) and result.applied for result in steady + told)
    assert log.appended < 20 * ASKED, "it fills the log with losers"
    await writer.close()
    await second.close()


async def test_losers_of_a_dead_writer_delay_others_only_briefly() -> None:
    partition = MemoryPartition()
    settings = MetadataLogSettings(cluster="demo", found="auto")
    busy = SlowLog(partition)
    writer, second = Writer(busy, settings), Writer(SlowLog(partition), settings)
    await writer.start()
    await second.start()
    await second.close()
    loser = partition.records[0].value
    told = list[Result]()
    for asked in range(1, 20):
        await begin(writer, f"number{asked}", told)
        await until(lambda: len(told) == asked, "it is told")  # noqa: B023
        busy._land(loser[:26] + bytes([asked] * 16) + loser[42:])
        await asyncio.sleep(0.02)
    assert writer._pause_timer._pause_s <= 8 * FIRST_PAUSE_S, "it gives way seldom"
    assert writer.losers >= 19
    await writer.close()


async def test_caller_gets_one_outcome_or_unknown_at_its_timeout() -> None:
    log = LossyLog(MemoryPartition())
    writer = Writer(log, MetadataLogSettings(cluster="demo", unknown_after_s=1.0, found="auto"))
    await writer.start()
    told: dict[str, list[Result]] = {"in time": [], "late": [], "never": []}
    await begin(writer, "in time", told["in time"])
    await writer.linearizable(TIMEOUT_S)
    log.lose = 1
    await begin(writer, "late", told["late"], 0.1)
    await until(lambda: told["late"], "the time is over")
    assert not writer.image.features.settings.get("late")
    await until(lambda: "late" in writer.image.features.settings, "it was forced")
    log.lose = LOST
    await begin(writer, "never", told["never"])
    writer._fail(LostWinnersError(7, "they are gone"))
    await until(lambda: told["never"], "the end")
    with pytest.raises(ReaderStoppedError):
        await writer.commit(setting("after"), TIMEOUT_S)
    kinds = {when: [type(result) for result in results] for when, results in told.items()}
    assert kinds == {"in time": [Outcome], "late": [TimeoutError], "never": [ReaderStoppedError]}
    assert not writer._pipeline.held
    await writer.close()


async def begin(
    writer: Writer, name: str, told: list[Result], timeout_s: float = TIMEOUT_S
) -> None:
    """Submit in a task, which adds the outcome, or the error, to ``told``."""

    async def commit() -> None:
        try:
            told.append(await writer.commit(setting(name), timeout_s))
        except Exception as error:
            told.append(error)

    task = asyncio.create_task(commit())
    TASKS.add(task)
    task.add_done_callback(TASKS.discard)
    await asyncio.sleep(0)


def setting(name: str) -> Envelope:
    return Envelope(request_id=named(name), command=SetSetting(name, "red"))


@pytest.mark.parametrize("seen", ["nothing", "the same", "another history", "more"])
async def test_returning_replicas_stop_a_writer_of_another_history(
    seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were down when the writer started on a topic that had lost its end."""
    monkeypatch.setattr("stele.metadata_log.known_end.SHORT_LOG_S", 0.3)
    writer = Writer(MemoryLog(MemoryPartition()), MetadataLogSettings(cluster="demo", found="auto"))
    await writer.start()
    for n in range(5):
        await writer.commit(
            Envelope(request_id=named(f"r{n}"), command=SetSetting("colour", str(n))), TIMEOUT_S
        )
    epoch, state_id = writer.image.epoch, writer.image.state_id
    floor = {
        "nothing": None,
        "the same": Floor(epoch, state_id),
        "another history": Floor(epoch - 1, state_id),
        "more": Floor(epoch + 1, state_id),
    }[seen]

    async def ask() -> Floor | None:
        return floor

    await writer.compare(ask)
    assert (writer.failure is not None) is (seen in ("another history", "more"))
    await writer.close()


async def test_linearizable_read_appends_no_record_if_the_end_may_be_lost() -> None:
    """The record would be an epoch of another history than the one that replicas hold."""
    partition = MemoryPartition()
    before = Writer(MemoryLog(partition), MetadataLogSettings(cluster="demo", found="auto"))
    await before.start()
    await before.close()
    records = len(partition.records)
    floor = Floor(90, bytes([9] * 16), "a catch-up replica holds", before.log_id.hex())
    writer = Writer(MemoryLog(partition), MetadataLogSettings(cluster="demo"), floor=floor)
    starting = asyncio.create_task(writer.start())
    await until(lambda: writer.image.epoch == 1, "it has read what is there")
    with pytest.raises(BusyError):
        await writer.linearizable(TIMEOUT_S)
    assert len(partition.records) == records
    starting.cancel()
    await writer.close()


async def test_epochs_that_replicas_have_are_not_lost_without_a_partition_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stele.metadata_log.known_end.SHORT_LOG_S", 0.3)
    partition = MemoryPartition()
    log = LossyLog(partition)
    writer = Writer(log, MetadataLogSettings(cluster="demo", found="auto"))
    await writer.start()
    other = Writer(LossyLog(partition), MetadataLogSettings(cluster="demo"))
    await other.start()
    partition.followers.remove(log._follower)  # type: ignore[arg-type]
    outcome = await other.commit(setting("colour"), TIMEOUT_S)
    log.leaderless = True

    async def ask() -> Floor | None:
        return Floor(outcome.epoch, outcome.state_id)

    comparing = asyncio.create_task(writer.compare(ask))
    await asyncio.sleep(1.0)
    assert not comparing.done(), writer.failure
    log.leaderless = False
    writer._reader._on_records(partition.records[writer.image.epoch :])
    await comparing
    assert writer.failure is None and writer.image.epoch == outcome.epoch
    await other.close()
    partition.followers.append(log._follower)  # type: ignore[arg-type]
    await writer.close()


class HungLog(MemoryLog):
    """A log whose past is always being read, so that new readers wait."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits for so long")


async def test_doubt_about_the_log_ends_while_past_epochs_are_read() -> None:
    partition = MemoryPartition()
    settings = MetadataLogSettings(cluster="demo", found="auto")
    writer = Writer(MemoryLog(partition), settings, past=HungLog(partition))
    await writer.start()
    for number in range(3):
        await writer.commit(setting(f"number{number}"), TIMEOUT_S)
    writer.history._recent.clear()
    reading = asyncio.create_task(writer.history.epochs(1, 2))
    await asyncio.sleep(0)
    writer._reader.suspect("the leader has changed")
    assert (await writer.commit(setting("after"), 30)).applied
    assert not reading.done()
    reading.cancel()
    await writer.close()


async def test_writer_started_on_a_lost_log_waits_for_its_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer has read nothing, so only the floor names the log to recover."""
    monkeypatch.setattr("stele.metadata_log.known_end.SHORT_LOG_S", 0.1)
    monkeypatch.setattr("stele.metadata_log.writer.RETRY_START_S", 0.05)
    lost = bytes([7] * 16)
    floor = Floor(90, bytes([9] * 16), "a catch-up replica holds", lost.hex())
    settings = MetadataLogSettings(cluster="demo")
    writer = Writer(MemoryLog(MemoryPartition()), settings, floor=floor)
    await writer.start()
    assert writer.failure is not None
    assert writer.log_id == lost
    await writer.close()


async def test_command_for_another_log_is_not_taken_but_keeps_its_outcome() -> None:
    """A client without an answer retries after a recovery, which keeps earlier decisions, and names the earlier
    log.
    """
    writer = Writer(MemoryLog(MemoryPartition()), MetadataLogSettings(cluster="demo", found="auto"))
    await writer.start()
    another = bytes([7] * 16).hex()
    asked = Envelope(request_id=named("asked"), command=SetSetting("colour", "red"))
    first = await writer.commit(asked, TIMEOUT_S)
    again = await writer.commit(replace(asked, log_id=another), TIMEOUT_S)
    fresh = replace(asked, request_id=named("fresh"), log_id=another)
    refused = await writer.commit(fresh, TIMEOUT_S)
    await writer.close()
    assert first.applied and again == first
    assert refused.rejection is not None
    assert (refused.taken, refused.rejection.code) == (False, OTHER_LOG)
