"""When a node may serve: the log must show that it is the same node, and reach what it acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from pathlib import Path

import msgspec
import pytest

from stele.agent import gate as gate_module
from stele.agent.gate import Gate, NotThisReplica, floor_of, noted
from stele.agent.identity import DataDirectory, boot
from stele.domain.commands import AnnounceNode, Noop
from stele.domain.image import Image
from stele.domain.membership.model import unclaimed
from stele.log.errors import LogError
from stele.log.fold import BEGINNING_FOR_FOLLOWERS
from stele.log.follower import Floor, LogFollower
from stele.log.recovery import start_after
from stele.runtime.service import Stop
from tests.domain.history import join
from tests.log.memory import MemoryLog, MemoryPartition
from tests.node.world import World, until

WAITS_S = 20.0


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
        """Admit the process. Raises TimeoutError where it would wait without end."""
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
        """The records that the broker did not show at first."""
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


def everything(world: World) -> int:
    return len(world.partition.records)


async def test_it_opens_for_the_host_that_the_log_knows_and_notes_the_cluster(
    world: World, directory: DataDirectory
) -> None:
    start = Start(directory, everything(world), world)
    assert start.code() == "catching_up"
    await start.admit()
    assert start.gate.closed() is None
    identity = boot(directory.folder, "n9", "demo").identity
    assert identity.cluster_id == world.image.cluster_id != ""
    row = world.image.node("n9")
    assert row is not None and identity.admitted_by == row.request_id
    assert identity.acknowledged == noted(world.image)


async def test_what_is_acknowledged_since_it_is_open_is_not_overwritten(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former member reads its row twice: at once, and before it announces changes. Meanwhile the agent writes
    newer versions, in another thread.
    """
    start, saved = Start(directory, everything(world), world), list[dict[str, object]]()
    await start.admit()
    monkeypatch.setattr(directory, "save", lambda **changes: saved.append(changes))
    await start.gate.recognise(start.stop)
    assert not saved


async def test_who_was_admitted_is_not_said_to_wait_for_that_while_it_notes_it(
    world: World, directory: DataDirectory
) -> None:
    """Otherwise a restarted node that has left would report it for a moment."""
    start = Start(directory, everything(world), world)
    await start.catch_up()
    await start.gate.reach(start.caught_up, start.stop)
    assert (start.gate.is_open, start.code()) == (False, "catching_up")
    await start.gate.recognise(start.stop)
    assert start.code() == ""


async def test_who_is_not_in_the_log_yet_waits_unadmitted(world: World, tmp_path: Path) -> None:
    directory = boot(tmp_path, "n8", "demo")
    start = Start(directory, everything(world), world)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.code() == "not_admitted", "the log's end")
    assert not start.gate.is_open
    world.apply(msgspec.structs.replace(join(8), host_id=directory.identity.host_id))
    start.read_on()
    await admitting
    assert start.gate.is_open


async def test_a_wiped_node_is_not_the_same_replica(
    world: World, directory: DataDirectory, tmp_path: Path
) -> None:
    """Its disk was replaced, its name is the same: the cluster would miss what it had acknowledged."""
    wiped = boot(tmp_path / "new disk", "n9", "demo")
    start = Start(wiped, everything(world), world)
    with pytest.raises(
        NotThisReplica, match=r"host_id_mismatch: .* put its own data directory back"
    ):
        await start.admit()
    assert not start.gate.is_open
    assert wiped.identity.admitted_by == ""


async def test_another_host_that_gets_the_name_meanwhile_ends_the_wait(
    world: World, tmp_path: Path
) -> None:
    """It would else wait for ever to be admitted."""
    directory = boot(tmp_path, "n8", "demo")
    start = Start(directory, everything(world), world)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.code() == "not_admitted", "the log's end")
    world.apply(msgspec.structs.replace(join(8), host_id="another"))
    start.read_on()
    with pytest.raises(NotThisReplica, match="node 'n8' is host another in the log"):
        await asyncio.wait_for(admitting, 60)
    assert not start.gate.is_open


async def test_data_of_another_cluster_is_refused_as_soon_as_the_log_names_its_own(
    world: World, directory: DataDirectory
) -> None:
    """The topic was recreated under the same name, and the nodes still have data of the old cluster."""
    directory.save(cluster_id="the one before")
    start = Start(directory, everything(world), world)
    with pytest.raises(
        NotThisReplica, match="data is of cluster id the one before; this log is of"
    ):
        await start.admit()
    assert start.code() == "not_admitted"


async def test_data_of_another_log_of_the_same_cluster_waits_for_its_own(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was founded again under the old id: the node's last epochs may be missing."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.05)
    await Start(directory, everything(world), world).admit()
    assert directory.identity.log_id == world.image.log_id.hex()
    directory.save(log_id="ff" * 16)
    start = Start(directory, everything(world), world)
    admitting = asyncio.create_task(start.admit())
    await says(start, f"data is of log {'ff' * 16}; this log is of log")
    assert not admitting.done() and not start.gate.is_open
    admitting.cancel()


async def test_a_member_that_the_log_does_not_know_is_refused(world: World, tmp_path: Path) -> None:
    directory = boot(tmp_path, "n7", "demo")
    directory.save(admitted_by="join-n7", cluster_id=world.image.cluster_id)
    with pytest.raises(NotThisReplica, match="does not know node 'n7', which request join-n7"):
        await Start(directory, everything(world), world).admit()


async def test_a_member_waits_for_the_state_that_its_cluster_is_to_begin_with(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = boot(tmp_path, "n7", "demo")
    directory.save(admitted_by="join-n7", cluster_id=world.image.cluster_id)
    start = Start(directory, everything(world), world)
    await start.catch_up()
    with pytest.raises(NotThisReplica, match="does not know node 'n7'"):
        start.gate.check_host(world.image)
    monkeypatch.setattr(gate_module, "awaits_state", lambda _: True)
    start.gate.check_host(world.image)


async def test_a_restarted_node_waits_for_the_fence_that_it_acknowledged(
    world: World, directory: DataDirectory
) -> None:
    """A broker that is cut off shows an old end of the log; the node knows better."""
    stale = everything(world)
    world.start_join()
    world.advance()
    world.fence()
    directory.save(acknowledged=noted(world.image))
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


async def says(start: Start, words: str) -> None:
    """Return whether it waits with this reason."""

    def told() -> bool:
        closed = start.gate.closed()
        return closed is not None and closed.code == "catching_up" and words in closed.message

    await until(told, words)


def with_a_lost_end(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> Start:
    """It reads a log without the newest epoch that it has acknowledged, and has little patience."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.05)
    stale = everything(world)
    world.apply(Noop())
    directory.save(acknowledged=noted(world.image))
    return Start(directory, stale, world)


async def test_a_node_waits_for_the_epoch_that_the_log_has_lost_and_says_so(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports its promises to the recovery."""
    start = with_a_lost_end(world, directory, monkeypatch)
    admitting = asyncio.create_task(start.admit())
    await says(start, f"the log ends at epoch {world.image.epoch - 1}: the log was truncated")
    assert not admitting.done() and not start.gate.is_open
    start.read_on()
    await admitting
    assert start.gate.closed() is None


async def test_what_was_missed_is_no_reason_any_more_once_it_was_read(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = with_a_lost_end(world, directory, monkeypatch)
    reaching = asyncio.create_task(start.gate.reach(start.caught_up, start.stop))
    catching_up = asyncio.create_task(start.catch_up())
    await says(start, "the log was truncated")
    start.read_on()
    await asyncio.wait_for(asyncio.gather(reaching, catching_up), 20)
    closed = start.gate.closed()
    assert closed is not None and "has found its row" in closed.message


async def test_what_replicas_know_of_more_is_no_reason_to_be_another_replica(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node has acknowledged nothing that is not there."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.05)
    floor = Floor(world.image.epoch + 1, bytes(16), "a catch-up replica holds")
    start = Start(directory, everything(world), world, floor=floor)
    admitting = asyncio.create_task(start.admit())
    await until(lambda: start.follower.is_at_end, "the log's end")
    await asyncio.sleep(0.3)
    assert not admitting.done()
    admitting.cancel()


async def test_a_log_that_is_long_to_read_is_not_one_that_ends_too_early(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = with_a_lost_end(world, directory, monkeypatch)
    monkeypatch.setattr(LogFollower, "is_at_end", False)
    admitting = asyncio.create_task(start.admit())
    await asyncio.sleep(0.3)
    assert not admitting.done()
    start.read_on()
    await admitting
    assert start.gate.is_open


async def test_a_node_says_what_a_log_has_lost_although_that_is_written_all_the_time(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is now and then a record that is not read yet."""
    monkeypatch.setattr(gate_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(gate_module, "LOOK_S", 0.01)
    stale = everything(world)
    world.apply(Noop())
    directory.save(acknowledged=noted(world.image))
    looks = count()
    monkeypatch.setattr(LogFollower, "is_at_end", property(lambda _: next(looks) % 10))
    start = Start(directory, stale, world)
    admitting = asyncio.create_task(start.admit())
    await says(start, "the log was truncated")
    admitting.cancel()


async def test_another_epoch_of_the_same_number_ends_the_node_with_the_reason(
    world: World, directory: DataDirectory
) -> None:
    told = noted(world.image)
    directory.save(acknowledged=msgspec.structs.replace(told, state_id="00" * 16))
    start = Start(directory, everything(world), world)
    with pytest.raises(
        NotThisReplica, match=rf"has another epoch there .*epoch {told.epoch} has state id"
    ):
        await start.admit()


async def test_a_log_that_cannot_be_read_on_closes_the_gate_again(
    world: World, directory: DataDirectory
) -> None:
    start = Start(directory, everything(world), world)
    await start.admit()
    start.follower.failure = RuntimeError("corrupt")
    assert start.code() == "unavailable" and not start.gate.is_open


async def test_a_place_that_waits_for_its_host_is_not_served_before_the_host_has_taken_it(
    world: World, tmp_path: Path
) -> None:
    directory = boot(tmp_path, "n8", "demo")
    host_id = directory.identity.host_id
    world.apply(msgspec.structs.replace(join(8), host_id=unclaimed(host_id)))
    start = Start(directory, everything(world), world)
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


async def test_a_log_that_turns_out_to_be_another_one_while_that_is_noted_opens_no_gate(
    world: World, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(directory, everything(world), world)
    save = directory.save

    def slow(**changes: object) -> None:
        start.gate.failure = NotThisReplica("it is another one")
        save(**changes)

    monkeypatch.setattr(directory, "save", slow)
    await start.admit()
    assert (start.gate.is_open, start.code()) == (False, "not_admitted")


async def test_another_history_than_the_replicas_hold_is_no_reason_to_be_another_replica(
    world: World, directory: DataDirectory
) -> None:
    """The log lost its end, and the node what it had in memory: after the recovery it is the same node. A
    process that ends as badly configured is not started any more.
    """
    start = Start(directory, everything(world), world)
    await start.admit()
    world.apply(Noop())
    floor = Floor(world.image.epoch, bytes(16), "a catch-up replica holds")
    again = Start(boot(directory.folder, "n9", "demo"), everything(world), world, floor=floor)
    admitting = asyncio.create_task(again.admit())
    await asyncio.wait_for(again.follower.failed.wait(), 90)
    await asyncio.sleep(0.2)
    assert not admitting.done()
    assert again.code() == "unavailable"
    admitting.cancel()
