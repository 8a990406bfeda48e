"""A node continues in a recovered log that has its acknowledged epochs, or if the loss is accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from stele.agent import gate
from stele.agent.gate import NotThisReplica, acknowledged_at, floor_of
from stele.agent.identity import AcceptedLoss, DataDirectory, boot
from stele.domain.commands import Noop
from stele.domain.image import Image
from stele.node.settings import NodeSettings
from stele.runtime.settings import ConfigurationError, load_settings
from tests.domain.history import LOG_ID, join
from tests.node.test_gate import Start, record_count, wait_for_reason
from tests.node.world import RECOVERED, World

OLD, NEW = LOG_ID.hex(), RECOVERED.hex()


@pytest.fixture(autouse=True)
def _waits_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "PATIENCE_S", 1.0)


@pytest.fixture
async def directory(world: World, tmp_path: Path) -> DataDirectory:
    """Return the directory of n9, a node of the old log, which acknowledged its newest epoch."""
    directory = boot(tmp_path, "n9", "demo")
    world.apply(msgspec.structs.replace(join(9), host_id=directory.identity.host_id))
    for _ in range(3):
        world.apply(Noop())
    await Start(directory, record_count(world), world).admit()
    assert directory.identity.acknowledged == acknowledged_at(world.image)
    return directory


def restarted(
    directory: DataDirectory, world: World, image: Image, accept: str = ""
) -> tuple[DataDirectory, Start]:
    again = boot(directory.folder, "n9", "demo")
    return again, Start(again, record_count(world), world, accept, image)


async def test_node_continues_in_a_recovered_log_with_all_acknowledged_epochs(
    world: World, directory: DataDirectory
) -> None:
    before = directory.identity.acknowledged
    world.apply(Noop())
    again, start = restarted(directory, world, world.recover())
    await start.admit()
    identity = boot(again.folder, "n9", "demo").identity
    assert start.gate.is_open
    assert (identity.log_id, identity.accepted_losses) == (NEW, ())
    assert identity.acknowledged == before
    world.apply(Noop())
    _, once_more = restarted(again, world, world.history.images[before.epoch + 1])
    await once_more.admit()
    assert once_more.gate.is_open


async def test_node_that_acknowledged_a_lost_epoch_is_refused_with_a_hint(
    world: World, directory: DataDirectory
) -> None:
    last = world.image.epoch
    _, start = restarted(directory, world, world.recover(last - 2))
    assert start.code() == "not_admitted"
    with pytest.raises(NotThisReplica) as caught:
        await start.admit()
    text = str(caught.value)
    assert f"acknowledged epoch {last} (version" in text
    assert f"of log {OLD}, which was recovered after epoch {last - 2} as log {NEW}" in text
    assert f"epochs {last - 1} to {last} are lost" in text
    assert f"STELE_ACCEPT_LOST_EPOCHS={OLD}" in text
    assert directory.identity.log_id == OLD


async def test_loss_is_accepted_only_by_the_old_log_id_and_is_recorded(
    world: World, directory: DataDirectory
) -> None:
    last = world.image.epoch
    image = world.recover(last - 2)
    _, other = restarted(directory, world, image, accept=NEW)
    with pytest.raises(NotThisReplica, match="are lost"):
        await other.admit()
    again, start = restarted(directory, world, image, accept=OLD)
    await start.admit()
    assert start.gate.is_open
    identity = boot(again.folder, "n9", "demo").identity
    assert identity.accepted_losses == (AcceptedLoss(OLD, last, last - 2, NEW),)
    assert identity.log_id == NEW
    assert identity.acknowledged == acknowledged_at(world.image), (
        "what it told of lost epochs is forgotten"
    )
    _, left_in = restarted(again, world, image, accept=OLD)
    await left_in.admit()
    assert left_in.gate.is_open


async def test_acknowledged_epoch_with_another_state_id_counts_as_lost(
    world: World, directory: DataDirectory
) -> None:
    """The node acknowledged the end of a history other than the recovered one."""
    told = directory.identity.acknowledged
    directory.save(acknowledged=msgspec.structs.replace(told, state_id="00" * 16))
    _, start = restarted(directory, world, world.recover())
    with pytest.raises(NotThisReplica, match=f"its epoch {told.epoch} is another one there"):
        await start.admit()


async def test_accepted_loss_before_the_recovered_end_is_recorded(
    world: World, directory: DataDirectory
) -> None:
    """The log had lost its end unnoticed, and had grown past it before a forced recovery."""
    told = directory.identity.acknowledged
    directory.save(acknowledged=msgspec.structs.replace(told, state_id="00" * 16))
    for _ in range(3):
        world.apply(Noop())
    again, start = restarted(directory, world, world.recover(), accept=OLD)
    await start.admit()
    identity = boot(again.folder, "n9", "demo").identity
    assert identity.accepted_losses == (AcceptedLoss(OLD, told.epoch, told.epoch - 1, NEW),)
    assert identity.acknowledged == acknowledged_at(world.image), (
        "what it told of lost epochs is forgotten"
    )


async def test_log_of_unknown_descent_is_refused_until_the_loss_is_accepted(
    world: World, directory: DataDirectory
) -> None:
    """The log of the node was a recovery too. The remaining log was recovered from an earlier one."""
    between = "20" * 16
    assert OLD < between < NEW
    directory.save(log_id=between)
    image = world.recover()
    _, start = restarted(directory, world, image)
    with pytest.raises(NotThisReplica, match=f"does not lead to this log, {NEW}: what it acted"):
        await start.admit()
    again, accepted = restarted(directory, world, image, accept=between)
    await accepted.admit()
    (loss,) = again.identity.accepted_losses
    assert (loss.log_id, loss.kept_epoch) == (between, 0)


async def check_waits_for_own_log(start: Start) -> None:
    """Check that the start check_waits_for_own_log for the log that the node followed last."""
    admitting = asyncio.create_task(start.admit())
    await wait_for_reason(start, f"data is of log {NEW}; this log is of log {OLD}")
    assert not admitting.done() and not start.gate.is_open
    admitting.cancel()


async def test_node_waits_while_it_reads_a_log_from_before_the_recovery(
    world: World, directory: DataDirectory
) -> None:
    """The process was started on the old topic."""
    directory.save(log_id=NEW)
    await check_waits_for_own_log(Start(directory, record_count(world), world))


async def test_accepted_loss_of_another_log_keeps_the_acknowledged_floor(
    directory: DataDirectory,
) -> None:
    """The setting may be left from an earlier loss. A log that lags for a moment has lost nothing."""
    assert floor_of(directory.identity, accept=NEW) == floor_of(directory.identity) is not None
    assert floor_of(directory.identity, accept=OLD) is None


async def test_accepted_loss_does_not_admit_an_older_log(
    world: World, directory: DataDirectory
) -> None:
    """The accepted loss covers a recovery, and not later epochs."""
    directory.save(log_id=NEW)
    await check_waits_for_own_log(Start(directory, record_count(world), world, accept=NEW))


async def test_older_log_that_turns_out_to_be_recovered_does_not_end_the_node(
    world: World, directory: DataDirectory
) -> None:
    """A catch-up replica that missed the recovery served the snapshot, without the record of the recovery."""
    directory.save(log_id=NEW)
    start = Start(directory, 2, world)
    admitting = asyncio.create_task(start.admit())
    await asyncio.sleep(0.3)
    assert not admitting.done() and start.code() == "catching_up"
    start.follower.fail(RuntimeError("the log was recovered here"))
    await asyncio.sleep(1.5)
    assert not admitting.done(), "the process begins anew, and is not misconfigured"
    admitting.cancel()


async def test_loss_of_the_current_log_cannot_be_accepted_in_advance(
    world: World, directory: DataDirectory
) -> None:
    start = Start(directory, record_count(world), world, accept=OLD)
    with pytest.raises(NotThisReplica, match="can be accepted once it was"):
        await start.admit()


async def test_node_admitted_in_a_lost_epoch_is_refused_and_must_rejoin(
    world: World, directory: DataDirectory
) -> None:
    image = world.recover(world.image.epoch - 4)
    assert world.image.node("n9") is None
    _, start = restarted(directory, world, image, accept=OLD)
    with pytest.raises(NotThisReplica, match=r"admitted in an epoch that was lost.* empty folder"):
        await start.admit()


def test_accept_lost_epochs_must_be_a_log_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_ACCEPT_LOST_EPOCHS", OLD)
    assert load_settings(NodeSettings).accept_lost_epochs == OLD
    monkeypatch.setenv("STELE_ACCEPT_LOST_EPOCHS", "yes")
    with pytest.raises(ConfigurationError, match="STELE_ACCEPT_LOST_EPOCHS"):
        load_settings(NodeSettings)
