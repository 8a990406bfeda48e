"""A node may serve once the log contains its host id and each epoch that it acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from pathlib import Path

import msgspec
import pytest

from stele.agent import gate as gate_module
from stele.agent.gate import Gate, NotThisReplica, acknowledged_at, floor_of
from stele.agent.identity import DataDirectory, boot
from stele.domain.commands import AnnounceNode, Noop
from stele.domain.image import Image
from stele.domain.model.membership import unclaimed
from stele.log.errors import LogError
from stele.log.fold import BEGINNING_FOR_FOLLOWERS
from stele.log.follower import Floor, LogFollower
from stele.log.recovery import start_after
from stele.runtime.service import Stop
from tests.domain.history import join
from tests.log.memory import MemoryLog, MemoryPartition
from tests.node.world import World
from tests.polling import until

WAITS_S = 240.0


class Start:
    """A node's start: a follower of some of the log's records, and the gate before it.

    ``image`` is the base of a recovered log, before the first of these records.
    """

    def __init__(
        self,
        directory: DataDirectory,
        records: int,
        world: World,
        accept: str = "",
        image: Image | None = None,
        floor: Floor | None = None,
    ) -> None:
        self.partition = MemoryPartition()
        for record in world.partition.records[:records]:
            self.partition.append(record.value)
        self.world = world
        floor = floor or floor_of(directory.identity, accept)
        start = BEGINNING_FOR_FOLLOWERS
        if image is not None:
            start = start_after(image, self.partition.records[0])
        self.follower = LogFollower(MemoryLog(self.partition), start, floor)
        self.gate = Gate(directory, self.follower, accept)
        self.follower.start()
        self.caught_up, self.stop = asyncio.Event(), Stop()

    async def admit(self) -> None:
        """Admit the process. Raises TimeoutError if that would wait forever."""
        catching_up = asyncio.create_task(self.catch_up())
        try:
            async with asyncio.timeout(WAITS_S):
                await self.gate.reach(self.caught_up, self.stop)
                self.gate.check_host(self.follower.image)
                await self.gate.recognise(self.stop)
        finally:
            catching_up.cancel()

    async def catch_up(self) -> None:
        with contextlib.suppress(LogError):
            await self.follower.wait_for_end()
            self.caught_up.set()

    def read_on(self) -> None:
        """Deliver the records that the broker did not return at first."""
        for record in self.world.partition.records[len(self.partition.records) :]:
            self.partition.append(record.value)
            for follower in self.partition.followers:
                follower([record])

    def code(self) -> str:
        closed = self.gate.closed()
        return "" if closed is None else closed.code


@pytest.fixture
def directory(world: World, tmp_path: Path) -> DataDirectory:
    """Return the directory of n9, which has asked to join with it."""
    directory = boot(tmp_path, "n9", "demo")
    world.apply(msgspec.structs.replace(join(9), host_id=directory.identity.host_id))
    return directory


def record_count(world: World) -> int:
    return len(world.partition.records)


async def test_gate_opens_for_the_host_in_the_log_and_records_the_cluster_id(
    world: World, directory: DataDirectory
) -> None:
    start = Start(directory, record_count(world), world)
    assert start.code() == "catching_up"
    await start.admit()
    assert start.gate.closed() is None
    identity = boot(directory.folder, "n9", "demo").identity
    assert identity.cluster_id == world.image.cluster_id != ""
    row = world.image.node("n9")
    assert row is not None and identity.admitted_by == row.request_id
    assert identity.acknowledged == acknowledged_at(world.image)


async def test_second_check_of_the_row_does_not_overwrite_newer_acks(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former member checks its row twice: at the start, and before it announces changes. Meanwhile the
    agent stores newer acks, in another thread.
    """
    start, saved = Start(directory, record_count(world), world), list[dict[str, object]]()
    await start.admit()
    monkeypatch.setattr(directory, "save", lambda **changes: saved.append(changes))
    await start.gate.recognise(start.stop)
    assert not saved


async def test_admitted_node_never_reports_not_admitted_during_its_start(
    world: World, directory: DataDirectory
) -> None:
    """Otherwise a restarted node that has left would report it for a moment."""
    start = Start(directory, record_count(world), world)
    await start.catch_up()
    await start.gate.reach(start.caught_up, start.stop)
    assert (start.gate.is_open, start.code()) == (False, "catching_up")
    await start.gate.recognise(start.stop)
    assert start.code() == ""


async def test_node_that_is_not_in_the_log_yet_waits_for_admission(
    world: World, tmp_path: Path
) -> None:
    directory = boot(tmp_path, "n8", "demo")
    start = Start(directory, record_count(world), world)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.code() == "not_admitted", "the log's end")
    assert not start.gate.is_open
    world.apply(msgspec.structs.replace(join(8), host_id=directory.identity.host_id))
    start.read_on()
    await admitting
    assert start.gate.is_open


async def test_node_with_a_new_disk_is_refused_under_its_old_name(
    world: World, directory: DataDirectory, tmp_path: Path
) -> None:
    """The disk was replaced under the same node id. Acknowledged data would be missing."""
    wiped = boot(tmp_path / "new disk", "n9", "demo")
    start = Start(wiped, record_count(world), world)
    with pytest.raises(NotThisReplica, match=r"host_id_mismatch: .* Restore its data directory"):
        await start.admit()
    assert not start.gate.is_open
    assert wiped.identity.admitted_by == ""


async def test_wait_for_admission_ends_when_another_host_gets_the_name(
    world: World, tmp_path: Path
) -> None:
    """Otherwise the node would wait for its admission forever."""
    directory = boot(tmp_path, "n8", "demo")
    start = Start(directory, record_count(world), world)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.code() == "not_admitted", "the log's end")
    world.apply(msgspec.structs.replace(join(8), host_id="another"))
    start.read_on()
    with pytest.raises(NotThisReplica, match="Node 'n8' is host another, not"):
        await asyncio.wait_for(admitting, 240)
    assert not start.gate.is_open


async def test_data_of_another_cluster_is_refused(world: World, directory: DataDirectory) -> None:
    """The topic was recreated under the same name, and the nodes still have data of the old cluster."""
    directory.save(cluster_id="the one before")
    start = Start(directory, record_count(world), world)
    with pytest.raises(
        NotThisReplica, match="data is of cluster id the one before; this log is of"
    ):
        await start.admit()
    assert start.code() == "not_admitted"


async def test_node_with_data_of_another_log_of_the_cluster_waits_for_that_log(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was founded again under the old cluster id. The last epochs of the node may be missing."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.05)
    await Start(directory, record_count(world), world).admit()
    assert directory.identity.log_id == world.image.log_id.hex()
    directory.save(log_id="ff" * 16)
    start = Start(directory, record_count(world), world)
    admitting = asyncio.create_task(start.admit())
    await wait_for_reason(start, f"data is of log {'ff' * 16}; this log is of log")
    assert not admitting.done() and not start.gate.is_open
    admitting.cancel()


async def test_admitted_node_that_the_log_does_not_know_is_refused(
    world: World, tmp_path: Path
) -> None:
    directory = boot(tmp_path, "n7", "demo")
    directory.save(admitted_by="join-n7", cluster_id=world.image.cluster_id)
    with pytest.raises(NotThisReplica, match="does not know node 'n7', which request join-n7"):
        await Start(directory, record_count(world), world).admit()


async def test_admitted_node_waits_while_the_log_awaits_its_first_state(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = boot(tmp_path, "n7", "demo")
    directory.save(admitted_by="join-n7", cluster_id=world.image.cluster_id)
    start = Start(directory, record_count(world), world)
    await start.catch_up()
    with pytest.raises(NotThisReplica, match="does not know node 'n7'"):
        start.gate.check_host(world.image)
    monkeypatch.setattr(gate_module, "awaits_state", lambda _: True)
    start.gate.check_host(world.image)


async def test_restarted_node_waits_for_the_epoch_that_it_acknowledged(
    world: World, directory: DataDirectory
) -> None:
    """A partitioned broker returns an old end of the log."""
    stale = record_count(world)
    world.start_join()
    world.advance()
    world.fence()
    directory.save(acknowledged=acknowledged_at(world.image))
    start = Start(directory, stale, world)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.follower.is_at_end, "the stale end")
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not start.caught_up.is_set()
    assert start.code() == "catching_up" and not start.gate.is_open
    closed = start.gate.closed()
    assert closed is not None and f"not yet at {world.image.epoch}" in closed.message
    start.read_on()
    await admitting
    assert start.gate.is_open


async def wait_for_reason(start: Start, words: str) -> None:
    """Wait until the gate reports this reason."""

    def told() -> bool:
        closed = start.gate.closed()
        return closed is not None and closed.code == "catching_up" and words in closed.message

    await until(told, words)


def start_with_lost_end(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> Start:
    """Return a start that reads a log without its newest acknowledged epoch. Patience is short."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.05)
    stale = record_count(world)
    world.apply(Noop())
    directory.save(acknowledged=acknowledged_at(world.image))
    return Start(directory, stale, world)


async def test_node_waits_and_reports_an_epoch_that_the_log_has_lost(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node must stay up to report its promise to a recovery."""
    start = start_with_lost_end(world, directory, monkeypatch)
    admitting = asyncio.create_task(start.admit())
    await wait_for_reason(
        start, f"the log ends at epoch {world.image.epoch - 1}: the log was truncated"
    )
    assert not admitting.done() and not start.gate.is_open
    start.read_on()
    await admitting
    assert start.gate.closed() is None


async def test_lost_epoch_is_reported_while_the_log_is_being_written(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy log often has a record that is not read yet."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(gate_module, "LOOK_S", 0.01)
    stale = record_count(world)
    world.apply(Noop())
    directory.save(acknowledged=acknowledged_at(world.image))
    looks = count()
    monkeypatch.setattr(LogFollower, "is_at_end", property(lambda _: next(looks) % 10))
    start = Start(directory, stale, world)
    admitting = asyncio.create_task(start.admit())
    await wait_for_reason(start, "the log was truncated")
    admitting.cancel()


async def test_node_ends_if_its_acknowledged_epoch_has_another_state_id(
    world: World, directory: DataDirectory
) -> None:
    told = acknowledged_at(world.image)
    directory.save(acknowledged=msgspec.structs.replace(told, state_id="00" * 16))
    start = Start(directory, record_count(world), world)
    with pytest.raises(
        NotThisReplica, match=rf"has another epoch there .*epoch {told.epoch} has state id"
    ):
        await start.admit()


async def test_gate_closes_when_the_log_becomes_unreadable(
    world: World, directory: DataDirectory
) -> None:
    start = Start(directory, record_count(world), world)
    await start.admit()
    start.follower.failure = RuntimeError("corrupt")
    assert start.code() == "unavailable" and not start.gate.is_open


async def test_unclaimed_row_is_not_served_before_its_host_has_claimed_it(
    world: World, tmp_path: Path
) -> None:
    directory = boot(tmp_path, "n8", "demo")
    host_id = directory.identity.host_id
    world.apply(msgspec.structs.replace(join(8), host_id=unclaimed(host_id)))
    start = Start(directory, record_count(world), world)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.code() == "not_admitted", "the log's end")
    await asyncio.sleep(2 * gate_module.LOOK_S)
    assert not admitting.done() and not start.gate.is_open
    row = world.image.node("n8")
    assert row is not None
    world.apply(AnnounceNode(node_id="n8", address=row.address, host_id=host_id))
    start.read_on()
    await admitting
    assert start.gate.is_open


async def test_gate_stays_closed_if_the_log_changes_while_it_is_recorded(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(directory, record_count(world), world)
    save = directory.save

    def slow(**changes: object) -> None:
        start.gate.failure = NotThisReplica("it is another one")
        save(**changes)

    monkeypatch.setattr(directory, "save", slow)
    await start.admit()
    assert (start.gate.is_open, start.code()) == (False, "not_admitted")


async def test_history_that_differs_from_the_replicas_does_not_end_the_node(
    world: World, directory: DataDirectory
) -> None:
    """The log lost its end, and the node its memory. After a recovery it is the same node, but a supervisor
    does not restart a process that ended with a configuration error.
    """
    start = Start(directory, record_count(world), world)
    await start.admit()
    world.apply(Noop())
    floor = Floor(world.image.epoch, bytes(16), "a catch-up replica holds")
    again = Start(boot(directory.folder, "n9", "demo"), record_count(world), world, floor=floor)
    admitting = asyncio.create_task(again.admit())
    await asyncio.wait_for(again.follower.failed.wait(), 240)
    await asyncio.sleep(0.2)
    assert not admitting.done()
    assert again.code() == "unavailable"
    admitting.cancel()
