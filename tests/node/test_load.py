"""Load reports of a node about its tablets and its disk, and their times."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from stele.agent import load
from stele.agent.load import Disk, HeldTablets, LoadReporter, disk_of, still_held
from stele.agent.stores import Span
from stele.domain.commands import CreateKeyspace, CreateTable
from stele.domain.messages import UNKNOWN_RATE, Load
from stele.domain.ring.partitioner import token_of
from stele.domain.tablets.maps import range_of, read_from
from stele.log.codec import decode_load, encode_load
from stele.log.follower import LogFollower
from stele.node import metrics
from stele.node.cells import StoredCell
from stele.node.load import Rates, measured, with_rates
from stele.node.store import Size, SqliteStore
from stele.runtime.logs import get_logger
from tests.domain.load_of import table_of
from tests.node.world import World
from tests.polling import until

NEVER_S = 3600.0
SOON_S = 0.02
"""A measurement that takes a second is followed by a pause of ten."""
KEYS = [f"k{number}".encode() for number in range(100)]


class FakeAgent(SimpleNamespace):
    """The part of a node's agent that the reporter uses."""

    node_id = "n1"
    host_id = "host-n1"
    boot_id = "boot-1"
    speaks = True
    follower: LogFollower

    def may_acknowledge(self) -> bool:
        return self.speaks

    @property
    def image(self) -> object:
        return self.follower.image


def create(world: World, table: str) -> str:
    """The data id of a new table of four tablets."""
    world.apply(CreateTable(f"music.{table}"))
    return world.data_id_of(f"music.{table}")


@pytest.fixture
async def agent(world: World) -> FakeAgent:
    world.apply(CreateKeyspace("music", {"dc1": 2}, tablets=True, initial_tablets=4))
    return FakeAgent(follower=await world.follower())


def disk(held_bytes: int) -> Disk:
    return Disk(10_000 + held_bytes, 10_000)


@asynccontextmanager
async def reporting(
    agent: FakeAgent,
    store: SqliteStore,
    interval_s: float = NEVER_S,
    disk: Callable[[int], Disk] = disk,
    rates: Rates | None = None,
) -> AsyncIterator[list[Load]]:
    """Return the messages sent meanwhile, through the codec."""
    sent = list[Load]()

    def send(load: Load) -> None:
        sent.append(decode_load(encode_load(load)))

    rates = rates or Rates(1.0)
    reporter = LoadReporter(
        agent,  # type: ignore[arg-type]
        partial(measured, store, agent.node_id),
        partial(with_rates, rates),
        send,
        disk,
        interval_s,
        metrics.load_failures.inc,
    )
    task = asyncio.create_task(reporter.run())
    try:
        yield sent
    finally:
        assert not task.done(), "nothing ends it"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_report_has_the_size_of_each_tablet_that_the_node_serves(
    world: World, agent: FakeAgent, store: SqliteStore
) -> None:
    data_id = create(world, "songs")
    await agent.follower.wait_for_epoch(world.image.epoch)
    await store.write(
        [StoredCell(data_id, token_of(key), key, 1, False, bytes(10)) for key in KEYS]
    )
    await store.write([StoredCell("else", token_of(key), key, 1, False, b"1") for key in KEYS])
    async with reporting(agent, store) as sent:
        await until(lambda: sent, "a report")
    (load,) = sent
    (told,) = load.tables
    ((_, count, tablets),) = read_from(world.image, "n1")
    assert (told.data_id, told.tablet_count, [*told.tablets]) == (data_id, count, tablets)
    expected = dict.fromkeys(tablets, 0)
    for key in KEYS:
        tablet = (token_of(key) + 2**63) * count >> 64
        if tablet in expected:
            expected[tablet] += len(key) + 10
    assert 0 < len(tablets) < count and all(expected.values())
    assert dict(zip(told.tablets, told.sizes_bytes, strict=True)) == expected
    held = sum(expected.values())
    assert (load.disk_total_bytes, load.disk_free_bytes) == (10_000 + held, 10_000)
    assert (load.node_id, load.host_id, load.boot_id) == ("n1", "host-n1", "boot-1")
    assert (load.epoch, load.log_id) == (world.image.epoch, world.image.log_id)
    assert metrics.tablet_bytes._value.get() == held


@pytest.mark.parametrize("how", ["given away", "split"])
async def test_tablets_that_change_during_a_measurement_are_not_reported(
    world: World, agent: FakeAgent, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One tablet moves away, or all of them are split. The next measurement includes them."""
    monkeypatch.setattr("stele.agent.load.SOON_S", SOON_S)
    data_id = create(world, "songs")
    await agent.follower.wait_for_epoch(world.image.epoch)
    ((_, count, (first, *others)),) = read_from(world.image, "n1")
    split = tuple(child for tablet in (first, *others) for child in (2 * tablet, 2 * tablet + 1))
    later = HeldTablets(data_id, count, tuple(others))
    if how == "split":
        later = HeldTablets(data_id, 2 * count, split)
    measure_each = store.measure_each

    async def measure_while_it_changes(spans: list[Span]) -> list[Size]:
        if world.image.schema.named("other") is None:
            world.apply(CreateKeyspace("other", {"dc1": 1}))
            await agent.follower.wait_for_epoch(world.image.epoch)
            monkeypatch.setattr("stele.agent.load.held_of", lambda *_: (later,))
        return await measure_each(spans)

    monkeypatch.setattr(store, "measure_each", measure_while_it_changes)
    async with reporting(agent, store) as sent:
        await until(lambda: sent, "a report")
    (told,) = sent[0].tables
    assert (told.tablet_count, told.tablets) == (later.of, later.tablets)


async def test_table_that_is_resized_in_each_measurement_is_still_reported(
    world: World, agent: FakeAgent, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow node measures while one of its growing tables is split again and again."""
    monkeypatch.setattr("stele.agent.load.SOON_S", SOON_S)
    data_id, calm_id = create(world, "songs"), create(world, "bands")
    await agent.follower.wait_for_epoch(world.image.epoch)
    calm = next(each for each in load.held_of(world.image, "n1") if each.data_id == calm_id)
    measured, measure_each = 0, store.measure_each

    async def measure_while_it_changes(spans: list[Span]) -> list[Size]:
        nonlocal measured
        measured += 1
        split = HeldTablets(data_id, 4 * 2**measured, tuple(range(2**measured)))
        world.apply(CreateKeyspace(f"other{measured}", {"dc1": 1}))
        await agent.follower.wait_for_epoch(world.image.epoch)
        monkeypatch.setattr("stele.agent.load.held_of", lambda *_: (split, calm))
        return await measure_each(spans)

    monkeypatch.setattr(store, "measure_each", measure_while_it_changes)
    async with reporting(agent, store) as sent:
        await until(lambda: sent or measured > 8, "a report")
    assert sent, "it is measured anew for ever"
    tables = {each.data_id: each for each in sent[0].tables}
    told = tables[data_id]
    assert (told.tablet_count, told.tablets) == (16, (0, 1, 2, 3)), "as the second one began"
    assert tables[calm_id].tablets == calm.tablets


async def test_report_has_the_read_and_write_rates_of_each_tablet(
    world: World, agent: FakeAgent, store: SqliteStore
) -> None:
    data_id, now_s = create(world, "songs"), 0.0
    await agent.follower.wait_for_epoch(world.image.epoch)
    rates = Rates(1.0, lambda: now_s)
    async with reporting(agent, store, 0.02, rates=rates) as sent:
        await until(lambda: sent, "the first report")
        assert {*sent[0].tables[0].reads_per_s} == {UNKNOWN_RATE}
        first, *others = sent[0].tables[0].tablets
        for _ in range(10):
            rates.count(data_id, range_of(4, first).end, written=False)
            rates.count(data_id, range_of(4, first).end, written=True)
        now_s = 2.0
        await until(lambda: UNKNOWN_RATE not in sent[-1].tables[0].reads_per_s, "known rates")
    (told,) = sent[-1].tables
    assert told.reads_per_s == told.writes_per_s == (5, *[0 for _ in others])
    assert told.lower_half_per_s == (0, *[0 for _ in others])
    assert metrics.tablet_reads._value.get() == metrics.tablet_writes._value.get() == 5


def test_tablets_that_the_node_lost_are_not_reported() -> None:
    table = table_of("t", 4, {1: 10, 3: 30})
    assert still_held([table], [HeldTablets("t", 4, (0, 3))]) == (table_of("t", 4, {3: 30}),)
    assert still_held([table], []) == (table_of("t", 4, {}),)


async def test_reports_repeat_after_the_interval_with_rising_sequence(
    agent: FakeAgent, store: SqliteStore
) -> None:
    async with reporting(agent, store, 0.02) as sent:
        await until(lambda: len(sent) >= 3, "three reports")
    assert [load.sequence for load in sent] == [*range(1, len(sent) + 1)]


async def test_new_tablets_trigger_an_early_report_and_other_epochs_do_not(
    world: World, agent: FakeAgent, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.agent.load.SOON_S", SOON_S)
    async with reporting(agent, store) as sent:
        await until(lambda: sent, "the first report")
        assert not sent[0].tables
        world.apply(CreateKeyspace("other", {"dc1": 1}))
        await agent.follower.wait_for_epoch(world.image.epoch)
        await asyncio.sleep(5 * SOON_S)  # longer than the delay of an early report
        assert len(sent) == 1
        first, second = create(world, "songs"), create(world, "bands")
        await until(lambda: len(sent) > 1 and len(sent[-1].tables) == 2, "what is new")
        assert {table.data_id for table in sent[-1].tables} == {first, second}
        assert len(sent) <= 3


async def test_node_sends_no_reports_before_it_may_speak(
    agent: FakeAgent, store: SqliteStore
) -> None:
    agent.speaks = False
    async with reporting(agent, store, 0.02) as sent:
        await asyncio.sleep(0.1)  # five intervals
        assert not sent
        agent.speaks = True
        await until(lambda: sent, "a report")


async def test_failed_measurement_is_logged_once_and_retried(
    agent: FakeAgent, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = False
    # A logger that was used before keeps the configuration of an earlier test in this process.
    monkeypatch.setattr(load, "log", get_logger(load.__name__))

    def disk_at_times(held_bytes: int) -> Disk:
        if not works:
            raise sqlite3.OperationalError("disk I/O error")
        return disk(held_bytes)

    failures = metrics.load_failures._value
    before = failures.get()
    with capture_logs() as logged:
        async with reporting(agent, store, 0.02, disk_at_times) as sent:
            await until(lambda: failures.get() >= before + 3, "three failures")
            works = True
            await until(lambda: sent, "a report")
    told = [line["event"] for line in logged]
    assert told == ["the load cannot be reported; it is retried"]


def test_disk_size_is_the_file_system_or_the_configured_capacity(tmp_path: Path) -> None:
    whole = disk_of(tmp_path, 5, 0)
    assert 0 < whole.free_bytes < whole.total_bytes
    assert disk_of(tmp_path, 300, 1000) == Disk(1000, 700)
    assert disk_of(tmp_path, 1300, 1000) == Disk(1000, 0)
    reused = disk_of(tmp_path, 5, 0, lambda: whole.total_bytes)
    assert reused.free_bytes == whole.total_bytes, (
        "room inside the store's files is free, up to all"
    )
    beyond = disk_of(tmp_path, 0, 2**60)
    assert beyond.total_bytes == 2**60 and beyond.free_bytes < whole.total_bytes
