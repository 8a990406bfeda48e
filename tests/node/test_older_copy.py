"""A directory that is an older copy of itself, detected by the node's later acknowledgements."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from stele.agent.agent import Agent, Flows
from stele.agent.gate import NotThisReplica
from stele.agent.identity import (
    AHEAD,
    COUNTED,
    MOST_AHEAD,
    SLOT_BYTES,
    AcceptedCopy,
    Acknowledged,
    begun,
    boot,
    read,
)
from stele.agent.identity import (
    HEARTBEATS_FILE as FILE,
)
from stele.agent.older_copy import SETTING, check_newest, is_older, newest_ack
from stele.domain.messages import Ack
from stele.log.brokers import Brokers
from stele.runtime.service import Stop
from tests.domain.ack_of import ack_of
from tests.domain.history import three_nodes
from tests.node.world import OpenGate, World
from tests.polling import until


async def run_and_kill(folder: Path, world: World, least: int = 1) -> list[Ack]:
    """Return the acks of a process that is killed after at least ``least`` of them."""
    acks = list[Ack]()
    flows = Flows(send_ack=acks.append, send_report=lambda _: None)
    directory = boot(folder, "n1", "demo")
    agent = Agent(directory, OpenGate(), await world.follower(), flows, lambda _: {}, 0.001)  # type: ignore[arg-type]
    await until(lambda: len(acks) >= least, "heartbeats")
    await agent.close()
    return acks


async def last_ack_after_copy(folder: Path, world: World, copy: Path, least: int = 1) -> Ack:
    """Return the last acknowledgement of a start later than the copy's."""
    await run_and_kill(folder, world)
    shutil.copytree(folder, copy)
    return (await run_and_kill(folder, world, least))[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "n1"


async def test_each_start_of_the_newest_directory_is_accepted(world: World, folder: Path) -> None:
    for least in (1, AHEAD, 3 * AHEAD, 2):
        told = (await run_and_kill(folder, world, least))[-1]
        directory = boot(folder, "n1", "demo")
        check_newest(directory, told, "")
        assert directory.identity.accepted_copies == ()


async def test_copy_of_a_running_node_is_refused_once_the_node_sent_more_acks(
    world: World, folder: Path, tmp_path: Path
) -> None:
    acks = list[Ack]()
    flows = Flows(acks.append, lambda _: None)
    directory = boot(folder, "n1", "demo")
    agent = Agent(directory, OpenGate(), await world.follower(), flows, lambda _: {}, 0.001)  # type: ignore[arg-type]
    await until(lambda: acks, "a heartbeat")
    shutil.copytree(folder, tmp_path / "copy")
    await until(lambda: len(acks) > 2 * AHEAD, "more heartbeats")
    await agent.close()
    told, copy = acks[-1], boot(tmp_path / "copy", "n1", "demo")
    assert copy.identity.boots == directory.identity.boots + 1, "by its starts it is newer"
    with pytest.raises(NotThisReplica) as refused:
        check_newest(copy, told, "")
    assert f"{SETTING}={told.sequence}" in str(refused.value)


async def test_copy_is_accepted_only_with_the_last_sequence_number(
    world: World, folder: Path, tmp_path: Path
) -> None:
    """The number is recorded. Later acknowledgements make the directory the newest one."""
    await run_and_kill(folder, world)
    shutil.copytree(folder, tmp_path / "copy")
    for _ in range(3):
        told = (await run_and_kill(folder, world, AHEAD))[-1]
    copy = boot(tmp_path / "copy", "n1", "demo")
    before = copy.heartbeats.counted
    with pytest.raises(NotThisReplica):
        check_newest(copy, told, str(told.sequence - 1))
    copy = boot(tmp_path / "copy", "n1", "demo")
    check_newest(copy, told, str(told.sequence))
    assert copy.identity.accepted_copies == (AcceptedCopy(before, told.sequence),)
    check_newest(boot(tmp_path / "copy", "n1", "demo"), told, "")
    newest = (await run_and_kill(tmp_path / "copy", world))[-1]
    assert newest.sequence > told.sequence
    check_newest(boot(tmp_path / "copy", "n1", "demo"), newest, "")


def test_older_copy_is_detected_by_starts_or_by_heartbeats() -> None:
    image = three_nodes()[0].image
    told = ack_of(image, "n1", sequence=10_000, boot_id=f"000000000003-ab{COUNTED}")
    assert not is_older(4, 10_000, told)
    assert is_older(3, 10_000, told)
    assert is_older(4, 9_999, told)
    assert is_older(4, 0, told)
    assert not is_older(1, 10_000, replace(told, boot_id="another form"))


async def test_acks_of_builds_without_a_heartbeat_count_compare_only_starts(
    world: World, folder: Path
) -> None:
    """Such builds restart the count with each start, and their directory may lack the file."""
    last = (await run_and_kill(folder, world))[-1]
    (folder / FILE).unlink()
    told = replace(last, sequence=10_000, boot_id=last.boot_id.removesuffix(COUNTED))
    directory = boot(folder, "n1", "demo")
    check_newest(directory, told, "")
    assert directory.identity.accepted_copies == ()
    assert is_older(int(told.boot_id.partition("-")[0]), 0, told)


@pytest.mark.parametrize("left", [None, b""], ids=["missing", "damaged"])
async def test_directory_without_a_heartbeat_count_is_refused(
    world: World, folder: Path, left: bytes | None
) -> None:
    """Parts of a copy were restored, so the count is unknown and taken as zero."""
    await run_and_kill(folder, world, 2 * AHEAD)
    told = (await run_and_kill(folder, world, AHEAD))[-1]
    (folder / FILE).unlink()
    if left is not None:
        (folder / FILE).write_bytes(left)
    for _ in range(3):
        directory = boot(folder, "n1", "demo")
        assert directory.identity.boots > int(told.boot_id.partition("-")[0]), (
            "by starts it is newer"
        )
        with pytest.raises(NotThisReplica, match=r"older_copy.*it counts 0 heartbeats"):
            check_newest(directory, told, "")
    check_newest(boot(folder, "n1", "demo"), told, str(told.sequence))
    assert (await run_and_kill(folder, world))[0].sequence == told.sequence + MOST_AHEAD + 1


async def test_repeated_starts_do_not_make_a_copy_newer(
    world: World, folder: Path, tmp_path: Path
) -> None:
    told = await last_ack_after_copy(folder, world, tmp_path / "copy")
    for _ in range(4):
        with pytest.raises(NotThisReplica, match=r"older_copy.*start 2,.* of its start 2"):
            check_newest(boot(tmp_path / "copy", "n1", "demo"), told, "")


async def test_original_directory_is_refused_once_a_copy_was_accepted(
    world: World, folder: Path, tmp_path: Path
) -> None:
    """Its count is ahead of its acks by as many heartbeats as the copy may have sent since."""
    told = await last_ack_after_copy(folder, world, tmp_path / "copy", 2 * AHEAD)
    assert read(folder).counted > told.sequence
    for _ in range(3):
        boot(folder, "n1", "demo")  # each start ends before its first ack
    check_newest(boot(tmp_path / "copy", "n1", "demo"), told, str(told.sequence))
    first = (await run_and_kill(tmp_path / "copy", world))[0]
    with pytest.raises(NotThisReplica, match="older_copy"):
        check_newest(boot(folder, "n1", "demo"), first, "")


async def test_accepted_copy_is_recorded_before_the_heartbeat_count_is_raised(
    world: World, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await last_ack_after_copy(folder, world, tmp_path / "copy", 2 * AHEAD)
    copy = boot(tmp_path / "copy", "n1", "demo")

    def dies(number: int) -> None:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(copy.heartbeats, "raise_to", dies)
    with pytest.raises(OSError, match="gone"):
        check_newest(copy, told, str(told.sequence))
    again = boot(tmp_path / "copy", "n1", "demo")
    assert [each.told for each in again.identity.accepted_copies] == [told.sequence]
    check_newest(again, told, "")
    assert len(again.identity.accepted_copies) == 1
    newest = await run_and_kill(tmp_path / "copy", world)
    assert newest[0].sequence == told.sequence + MOST_AHEAD + 1
    assert newest[0].boot_id > told.boot_id


async def test_accepted_copy_takes_over_the_acknowledged_state(
    world: World, folder: Path, tmp_path: Path
) -> None:
    """A node does not follow a log that lacks an epoch that it acknowledged."""
    ack = replace(await last_ack_after_copy(folder, world, tmp_path / "copy"), log_id=b"\x07" * 16)
    told = replace(ack, epoch=ack.epoch + 30, version=9, fence_version=8, state_id=b"\x01" * 16)
    copy = boot(tmp_path / "copy", "n1", "demo")
    copy.save(log_id="07" * 16)
    check_newest(copy, told, str(told.sequence))
    promise = Acknowledged(told.epoch, "01" * 16, 9, 8)
    assert (copy.identity.acknowledged, copy.identity.log_id) == (promise, "07" * 16)
    for older in (
        replace(told, epoch=told.epoch - 1),
        replace(told, epoch=told.epoch + 1, state_id=b""),
        replace(told, epoch=told.epoch + 1, log_id=b""),
        replace(told, epoch=told.epoch + 1, log_id=b"\x06" * 16),
    ):
        later = replace(older, sequence=told.sequence + 10_000)
        check_newest(copy, later, str(later.sequence))
        assert copy.identity.acknowledged == promise
    of_the_next_log = replace(
        told, epoch=5, log_id=b"\x08" * 16, state_id=b"\x02" * 16, sequence=told.sequence + 50_000
    )
    check_newest(copy, of_the_next_log, str(of_the_next_log.sequence))
    assert copy.identity.acknowledged == Acknowledged(5, "02" * 16, 9, 8)
    assert copy.identity.log_id == "08" * 16


async def test_boot_id_of_an_accepted_copy_follows_the_earlier_acks(
    world: World, folder: Path, tmp_path: Path
) -> None:
    """The agent is created before the earlier acknowledgements are read."""
    await run_and_kill(folder, world)
    shutil.copytree(folder, tmp_path / "copy")
    for _ in range(3):
        told = (await run_and_kill(folder, world))[-1]
    acks, gate = list[Ack](), SimpleNamespace(is_open=False)
    flows, copy = Flows(acks.append, lambda _: None), boot(tmp_path / "copy", "n1", "demo")
    agent = Agent(copy, gate, await world.follower(), flows, lambda _: {}, 0.001)  # type: ignore[arg-type]
    check_newest(copy, told, str(told.sequence))
    gate.is_open = True
    await until(lambda: acks, "a heartbeat")
    await agent.close()
    assert acks[0].boot_id > told.boot_id and acks[0].sequence > told.sequence


def test_invalid_ack_time_is_reported_as_unknown(folder: Path) -> None:
    boot(folder, "n1", "demo")
    directory = boot(folder, "n1", "demo")
    told = ack_of(three_nodes()[0].image, "n1", boot_id="000000000009-ab", at_ms=10**17)
    with pytest.raises(NotThisReplica, match="an unknown time"):
        check_newest(directory, told, "")


async def test_new_directory_does_not_read_earlier_acks(folder: Path) -> None:
    directory, said = boot(folder, "n1", "demo"), list[str]()
    assert await newest_ack(Brokers("127.0.0.1:1"), directory, Stop(), said.append) is None
    assert not said


def test_heartbeat_count_never_decreases(folder: Path) -> None:
    folder.mkdir()
    heartbeats = begun(folder)
    for number in (32, 64, 50, 65, 65, 500):
        heartbeats.raise_to(number)
        assert read(folder).counted == heartbeats.counted >= number
    assert heartbeats.counted == 500
    assert (folder / FILE).stat().st_size == 2 * SLOT_BYTES


@pytest.mark.parametrize("writes", range(1, 5))
def test_torn_write_keeps_the_previous_heartbeat_count(folder: Path, writes: int) -> None:
    folder.mkdir()
    heartbeats = begun(folder)
    for number in range(1, writes + 1):
        heartbeats.raise_to(32 * number)
    path, slot = folder / FILE, writes % 2
    whole = path.read_bytes()
    torn = bytearray(whole)
    torn[slot * SLOT_BYTES + 15 : slot * SLOT_BYTES + 30] = bytes(15)
    path.write_bytes(torn)
    assert read(folder).counted == 32 * (writes - 1)
    again = read(folder)
    again.raise_to(7_777)
    assert read(folder).counted == 7_777


def test_heartbeat_count_is_raised_in_growing_steps(folder: Path) -> None:
    folder.mkdir()
    heartbeats, sequence, raised = begun(folder), 0, 0
    for sequence in range(5_000):
        if heartbeats.is_short(sequence):
            heartbeats.get_ahead_of(sequence)
            raised += 1
        assert heartbeats.counted >= sequence
    assert raised < 60
    assert heartbeats.counted <= sequence + MOST_AHEAD
