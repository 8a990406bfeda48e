"""The writer's shell over a log that misbehaves: what was lost is forced to an outcome, come what may."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from msgspec.structs import replace

from stele.domain.commands import Envelope, Outcome, SetSetting
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.requests.model import named
from stele.domain.requests.not_taken import OTHER_LOG
from stele.log.chain import STATE_ID
from stele.log.errors import LostWinnersError
from stele.log.follower import Floor
from stele.log.port import Record
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import (
    FIRST_PAUSE_S,
    FIRST_WINDOW_S,
    BusyError,
    ReaderStoppedError,
    Writer,
)
from tests.log.memory import MemoryLog, MemoryPartition
from tests.services.world import until

TIMEOUT_S = 90.0
LOST = 12
"""The record and eleven NOOPs for its decision: three seconds, in which the lag is queried, too."""
MANY: Final = 2_000
"""Requests: these take twenty seconds, in which what is silent for 0.3 s is forced to an outcome."""
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

    async def end_offset(self) -> int:
        if self.leaderless:
            raise TimeoutError("no leader")
        return await super().end_offset()


async def test_a_lost_record_is_decided_again_even_while_no_leader_tells_the_end() -> None:
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
async def test_a_new_cluster_has_the_features_of_its_build(features: Any) -> None:
    """Unless the setting says otherwise, or it begins with the state of a dump."""
    settings = MetadataLogSettings(cluster="demo", found="auto", found_features=features)
    writer = Writer(MemoryLog(MemoryPartition()), settings)
    await writer.start()
    wanted = tuple(sorted(KNOWN_FEATURES)) if features == "all" else ()
    assert writer.image.features.enabled == wanted
    await writer.close()


async def test_what_was_lost_is_forced_while_records_behind_it_come_back_all_the_time() -> None:
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


async def test_a_writer_that_gives_way_appends_nothing_once_the_log_cannot_be_read_any_more() -> (
    None
):
    """A command that waits for another writer's turn fails with an unknown outcome."""
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
    """Each record is on its way for a while, there and back."""

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


async def test_who_writes_beside_steady_commands_of_another_gets_turns() -> None:
    """The other one has records in flight all the time, each chained to the one before it."""
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


async def test_nobody_is_held_up_for_long_by_the_losers_of_a_writer_that_is_dead() -> None:
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
    assert writer._giving_way._pause_s <= 8 * FIRST_PAUSE_S, "it gives way seldom"
    assert writer.losers >= 19
    await writer.close()


async def test_who_waits_is_told_once_and_that_it_is_unknown_when_the_time_is_over() -> None:
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
async def test_replicas_that_come_back_later_stop_who_writes_another_history(
    seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were down when it started on a topic that had lost its end."""
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


async def test_a_read_adds_no_record_to_a_log_whose_end_may_be_lost() -> None:
    """Else that would be an epoch of another history than those that others hold."""
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


async def test_what_replicas_have_read_already_is_not_lost_while_no_broker_tells_the_end(
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
    """Others read the past all the time, and new readers queue behind them."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits for so long")


async def test_a_doubt_about_the_log_is_settled_while_others_read_its_past() -> None:
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


async def test_who_begins_on_a_lost_log_waits_for_the_recovery_of_that_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has read nothing, so only the floor tells which log is to be recovered."""
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


async def test_a_command_for_another_log_is_taken_by_none_but_has_the_outcome_that_it_had() -> None:
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
