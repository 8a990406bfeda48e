"""Decisions outside the event loop: later requests wait in order, and a foreign winner discards them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from stele.domain.commands import (
    AlterSchema,
    CreateKeyspace,
    CreateTable,
    Envelope,
    Leave,
    LoadState,
    Noop,
    Outcome,
    SetSetting,
)
from stele.domain.context import Context
from stele.domain.image import EMPTY
from stele.domain.model.requests import named
from stele.domain.model.ring import RingImage
from stele.domain.model.schema import TableCreation, TableOptions
from stele.domain.registry import DECISIONS
from stele.log import pipeline, record_builder
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer as Shell
from tests.coordinator.test_tablets import with_table
from tests.log.memory import MemoryLog, MemoryPartition
from tests.log.test_pipeline import LARGE, Writer, applied_once, by_name, code_of, create, setting
from tests.polling import until

TIMEOUT_S = 240.0


@pytest.fixture(autouse=True)
def large_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "is_large", by_name)


def test_requests_behind_a_large_decision_wait_in_order() -> None:
    partition = MemoryPartition()
    writer, read = create(partition, is_apart=True), list[Outcome]()
    writer.submit(setting("before"))
    writer.submit(setting(LARGE))
    writer.submit(setting("after"))
    writer.linearizable_read(read)
    writer.submit(Envelope(request_id=named("refused"), command=Leave("nobody")))
    assert writer.pipeline.held == 4
    writer.land()
    writer.meet()
    assert [o.epoch for o in writer.answers[named("before")]] == [2]
    assert len(partition.records) == 2
    writer.settle()
    assert writer.pipeline.held == 0
    assert applied_once(partition) == {
        named(name): n for n, name in enumerate(("create", "before", LARGE, "after"), 1)
    }
    assert code_of(writer.answers[named("refused")][0]) == "unknown_node"
    assert read[0].epoch > 4


def test_same_request_id_shares_a_large_decision() -> None:
    partition = MemoryPartition()
    writer = create(partition, is_apart=True)
    for _ in range(3):
        writer.submit(setting(LARGE))
    assert len(writer.works) == 1
    writer.settle()
    assert [o.epoch for o in writer.answers[named(LARGE)]] == [2, 2, 2]


def test_foreign_winner_makes_a_large_decision_start_again() -> None:
    partition = MemoryPartition()
    one, two = create(partition, is_apart=True), Writer("second", partition)
    two.meet()
    read = list[Outcome]()
    one.submit(setting(LARGE))
    one.submit(setting("after"))
    one.linearizable_read(read)
    two.submit(Envelope(request_id=named("two"), command=SetSetting(LARGE, "other")))
    two.settle()
    one.meet()
    one.pipeline.flush()
    assert len(one.works) == 2
    one.work()
    assert not one.sent
    one.settle()
    assert applied_once(partition) == {
        named(name): n for n, name in enumerate(("create", "two", LARGE, "after"), 1)
    }
    assert one.pipeline.fold.image.features.settings[LARGE] == "v"
    assert [o.epoch for o in read] == [5]


def test_failed_large_decision_is_refused_and_blocks_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    writer = create(MemoryPartition(), is_apart=True)
    found = writer.pipeline.bugs = list[Envelope]()
    writer.submit(setting(LARGE))
    writer.submit(Envelope(request_id=named("after"), command=Noop()))
    with monkeypatch.context() as patch:
        patch.setitem(DECISIONS, SetSetting, broken)
        writer.work()
    writer.settle()
    assert found == [setting(LARGE)]
    assert code_of(writer.answers[named(LARGE)][0]) == "internal"
    assert writer.answers[named("after")][0].applied


def test_is_large_depends_on_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_builder, "LARGE_ROWS", 100)
    options = TableOptions(min_tablet_count=128)
    assert not record_builder.is_large(EMPTY, Noop())
    assert not record_builder.is_large(EMPTY, CreateKeyspace("k", {"dc1": 1}))
    assert not record_builder.is_large(EMPTY, CreateTable("k.t"))
    assert record_builder.is_large(EMPTY, CreateTable("k.t", options))
    assert not record_builder.is_large(EMPTY, LoadState(content=bytes(100)))
    assert record_builder.is_large(EMPTY, LoadState(content=bytes(record_builder.LARGE_BYTES)))


def test_new_table_counts_only_its_own_tablets_when_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_builder, "LARGE_ROWS", 6)
    image = with_table("a1 b1 c1", 4).image
    ring = RingImage(image.ring.placements, image.ring.nodes)
    uncounted = msgspec.structs.replace(image, ring=ring)
    assert image.ring.has_tablet_counts and image.ring.rows == ring.rows == 4
    one, batch = CreateTable("music.new"), AlterSchema((TableCreation(name="music.new"),))
    for command in (one, batch):
        assert record_builder.is_large(uncounted, command)
        assert not record_builder.is_large(image, command)
    assert record_builder.is_large(
        image, AlterSchema((*batch.changes, TableCreation(name="music.other")))
    )


async def test_event_loop_runs_while_a_large_command_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = Shell(MemoryLog(MemoryPartition()), MetadataLogSettings(cluster="demo", found="auto"))
    await writer.start()
    begun, go_on = asyncio.Event(), threading.Event()
    slow = _slowly(DECISIONS[SetSetting], asyncio.get_running_loop(), begun, go_on)
    monkeypatch.setitem(DECISIONS, SetSetting, slow)
    created = asyncio.create_task(writer.commit(setting(LARGE), TIMEOUT_S))
    await begun.wait()
    after = asyncio.create_task(writer.commit(setting("after"), TIMEOUT_S))
    image = asyncio.create_task(writer.linearizable(TIMEOUT_S))
    await asyncio.sleep(0.1)
    assert not created.done()
    assert not after.done()
    assert not image.done()
    go_on.set()
    assert (await created).epoch < (await after).epoch
    assert {LARGE, "after"} <= {*(await image).features.settings}
    await writer.close()


async def test_decision_undone_before_its_start_is_never_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every foreign winner undoes it, and threads must not pile up."""
    partition = MemoryPartition()
    settings = MetadataLogSettings(cluster="demo", found="auto")
    one, two = Shell(MemoryLog(partition), settings), Shell(MemoryLog(partition), settings)
    await one.start()
    await two.start()
    begun, go_on, times = asyncio.Event(), threading.Event(), list[object]()
    slow = _slowly(DECISIONS[SetSetting], asyncio.get_running_loop(), begun, go_on)

    def counted(context: Context, command: SetSetting) -> object:
        if command.name == LARGE:
            times.append(context)
        return slow(context, command)

    monkeypatch.setitem(DECISIONS, SetSetting, counted)
    created = asyncio.create_task(one.commit(setting(LARGE), TIMEOUT_S))
    await begun.wait()

    def is_decided_after(epoch: int) -> bool:
        return one.image.epoch == epoch and one._pipeline._deciding is not None

    for n in range(5):
        won = await two.commit(setting(f"foreign{n}"), TIMEOUT_S)
        await until(partial(is_decided_after, won.epoch), "what it undid is decided again")
    for _ in range(2):
        await asyncio.sleep(0)  # the thread drops the decision that was undone last a turn later
    go_on.set()
    assert (await created).epoch == won.epoch + 1
    assert len(times) == 2, "the first, and the one on the newest state"
    await one.close()
    await two.close()


async def test_closed_writer_discards_a_decision_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = MemoryPartition()
    writer = Shell(MemoryLog(partition), MetadataLogSettings(cluster="demo", found="auto"))
    await writer.start()
    begun, go_on = asyncio.Event(), threading.Event()
    slow = _slowly(DECISIONS[SetSetting], asyncio.get_running_loop(), begun, go_on)
    monkeypatch.setitem(DECISIONS, SetSetting, slow)
    pending = writer.submit(setting(LARGE))
    await begun.wait()
    await writer.close()
    go_on.set()
    await asyncio.to_thread(writer._deciding.shutdown)
    await asyncio.sleep(0)
    assert len(partition.records) == 1
    assert not pending.done()


def _slowly(
    decide: Callable[..., object],
    loop: asyncio.AbstractEventLoop,
    begun: asyncio.Event,
    go_on: threading.Event,
) -> Callable[..., object]:
    def slow(context: Context, command: SetSetting) -> object:
        if command.name != LARGE:
            return decide(context, command)
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(TIMEOUT_S)
        return decide(context, command)

    return slow
