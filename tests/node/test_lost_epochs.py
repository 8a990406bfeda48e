"""A node whose log was recovered continues when all that it acknowledged is there, or the loss is accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from stele.agent import gate
from stele.agent.gate import NotThisReplica, floor_of, noted
from stele.agent.identity import AcceptedLoss, DataDirectory, boot
from stele.domain.commands import Noop
from stele.domain.image import Image
from stele.node.settings import NodeSettings
from stele.runtime.settings import ConfigurationError, load_settings
from tests.domain.history import LOG_ID, join
from tests.node.test_gate import Start, everything, says
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
    await Start(directory, everything(world), world).admit()
    assert directory.identity.acknowledged == noted(world.image)
    return directory


def restarted(
    directory: DataDirectory, world: World, image: Image, accept: str = ""
) -> tuple[DataDirectory, Start]:
    again = boot(directory.folder, "n9", "demo")
    return again, Start(again, everything(world), world, accept, image)


async def test_a_node_goes_on_in_a_log_that_has_all_that_it_acknowledged(
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


async def test_a_node_that_acknowledged_a_lost_epoch_serves_nothing_and_says_what_to_do(
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


async def test_the_loss_can_be_accepted_by_the_old_logs_id_alone_and_is_noted(
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
    assert identity.acknowledged == noted(world.image), "what it told of lost epochs is forgotten"
    _, left_in = restarted(again, world, image, accept=OLD)
    await left_in.admit()
    assert left_in.gate.is_open


async def test_another_epoch_of_the_same_number_is_a_loss_too(
    world: World, directory: DataDirectory
) -> None:
    """It acknowledged the end of a history that is not the one that was recovered."""
    told = directory.identity.acknowledged
    directory.save(acknowledged=msgspec.structs.replace(told, state_id="00" * 16))
    _, start = restarted(directory, world, world.recover())
    with pytest.raises(NotThisReplica, match=f"its epoch {told.epoch} is another one there"):
        await start.admit()


async def test_an_accepted_loss_before_the_recovered_end_is_noted(
    world: World, directory: DataDirectory
) -> None:
    """The log had lost its end unseen and had grown past it when it was recovered by force."""
    told = directory.identity.acknowledged
    directory.save(acknowledged=msgspec.structs.replace(told, state_id="00" * 16))
    for _ in range(3):
        world.apply(Noop())
    again, start = restarted(directory, world, world.recover(), accept=OLD)
    await start.admit()
    identity = boot(again.folder, "n9", "demo").identity
    assert identity.accepted_losses == (AcceptedLoss(OLD, told.epoch, told.epoch - 1, NEW),)
    assert identity.acknowledged == noted(world.image), "what it told of lost epochs is forgotten"


async def test_a_log_that_does_not_come_from_its_own_is_refused_until_that_is_accepted(
    world: World, directory: DataDirectory
) -> None:
    """The remaining log was recovered from before the node's own log, which was itself a recovered one."""
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


async def waits(start: Start) -> None:
    """For the log that the node has followed last."""
    admitting = asyncio.create_task(start.admit())
    await says(start, f"data is of log {NEW}; this log is of log {OLD}")
    assert not admitting.done() and not start.gate.is_open
    admitting.cancel()


async def test_a_log_from_before_the_recovery_is_not_the_nodes(
    world: World, directory: DataDirectory
) -> None:
    """Somebody started it on the old topic again."""
    directory.save(log_id=NEW)
    await waits(Start(directory, everything(world), world))


async def test_who_accepts_the_loss_of_another_log_still_waits_for_what_it_acknowledged(
    directory: DataDirectory,
) -> None:
    """The setting may be left from before; a log that is short for a moment has lost nothing."""
    assert floor_of(directory.identity, accept=NEW) == floor_of(directory.identity) is not None
    assert floor_of(directory.identity, accept=OLD) is None


async def test_an_older_log_is_not_the_nodes_though_the_loss_of_its_own_is_accepted(
    world: World, directory: DataDirectory
) -> None:
    """The accepted loss is that of a recovery, and not that of later epochs."""
    directory.save(log_id=NEW)
    await waits(Start(directory, everything(world), world, accept=NEW))


async def test_an_older_log_may_go_on_as_the_nodes_further_on(
    world: World, directory: DataDirectory
) -> None:
    """A replica that has missed the recovery gave the snapshot, and the record that tells of it comes later."""
    directory.save(log_id=NEW)
    start = Start(directory, 2, world)
    admitting = asyncio.create_task(start.admit())
    await asyncio.sleep(0.3)
    assert not admitting.done() and start.code() == "catching_up"
    start.follower.fail(RuntimeError("the log was recovered here"))
    await asyncio.sleep(1.5)
    assert not admitting.done(), "the process begins anew, and is not misconfigured"
    admitting.cancel()


async def test_a_loss_of_the_log_that_is_followed_is_not_accepted_in_advance(
    world: World, directory: DataDirectory
) -> None:
    start = Start(directory, everything(world), world, accept=OLD)
    with pytest.raises(NotThisReplica, match="can be accepted once it was"):
        await start.admit()


async def test_a_node_that_was_admitted_in_a_lost_epoch_is_told_to_join_anew(
    world: World, directory: DataDirectory
) -> None:
    image = world.recover(world.image.epoch - 4)
    assert world.image.node("n9") is None
    _, start = restarted(directory, world, image, accept=OLD)
    with pytest.raises(NotThisReplica, match=r"admitted in an epoch that was lost.* empty folder"):
        await start.admit()


def test_the_setting_is_a_log_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_ACCEPT_LOST_EPOCHS", OLD)
    assert load_settings(NodeSettings).accept_lost_epochs == OLD
    monkeypatch.setenv("STELE_ACCEPT_LOST_EPOCHS", "yes")
    with pytest.raises(ConfigurationError, match="STELE_ACCEPT_LOST_EPOCHS"):
        load_settings(NodeSettings)
