"""The active coordinator: it is elected, has read the log to its end, and has claimed the newest term."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from stele.coordinator import driver as driver_module
from stele.coordinator import model
from stele.coordinator.driver import RECLAIM_S, Driver
from stele.coordinator.model import Limits, Memory, Observed, Steps
from stele.coordinator.settings import CoordinatorSettings
from stele.coordinator.steps import next_steps
from stele.domain.commands import ClaimCoordinator, Envelope, Exclude, Outcome, Rejection
from stele.domain.model.topology import ExcludeDead
from stele.domain.not_taken import BUSY
from stele.domain.topology import planning
from stele.log.codec import encode_ack
from tests.domain.ack_of import ack_of
from tests.domain.history import join
from tests.node.world import World


class Sent:
    """A commander that records commands."""

    def __init__(self) -> None:
        self.commands: list[Envelope] = []
        self.outcome: asyncio.Future[Outcome]

    def send(self, envelope: Envelope) -> asyncio.Future[Outcome]:
        self.commands.append(envelope)
        self.outcome = asyncio.get_running_loop().create_future()
        return self.outcome

    def answers(self, why: Rejection, *, taken: bool = True) -> None:
        """Refuse the newest command."""
        request_id = self.commands[-1].request_id
        outcome = Outcome(
            request_id=request_id, applied=False, epoch=1, state_id=b"", rejection=why, taken=taken
        )
        self.outcome.set_result(outcome)

    @property
    def claims(self) -> list[tuple[int, str]]:
        """Return terms with the ids under which they are claimed."""
        kinds = [(each.command, each.request_id) for each in self.commands]
        return [(c.term, i) for c, i in kinds if isinstance(c, ClaimCoordinator)]


class Process:
    """A coordinator that has read the log and is elected."""

    def __init__(self, world: World, follower: Any) -> None:
        self.world, self.sent = world, Sent()
        self.followed = SimpleNamespace(follower=follower, caught_up=asyncio.Event())
        self.followed.caught_up.set()
        outside: Any = self.sent
        followed: Any = self.followed
        settings = CoordinatorSettings(instance_id="c-9")
        self.driver = Driver(settings, followed, outside, outside, SimpleNamespace())
        self.driver.election.elected = True

    async def win(self) -> None:
        """Let the log accept the newest claim."""
        ((term, request_id),) = self.sent.claims[-1:]
        self.world.apply(ClaimCoordinator("c-9", term), request_id)
        await self.followed.follower.wait_for_epoch(self.world.image.epoch)


def acts(driver: Driver) -> bool:
    """Return whether the driver has run a step of its own term."""
    return driver.active and driver.memory.round[:1] == (driver.term,)


@pytest.fixture
async def process() -> Process:
    world = World()
    return Process(world, await world.follower())


async def test_elected_coordinator_claims_a_term_and_acts_after_its_commit(
    process: Process,
) -> None:
    driver, world = process.driver, process.world
    driver._step(100.0)
    ((term, _),) = process.sent.claims
    assert term == world.image.topology.coordinator.term + 1
    assert not acts(driver)
    await process.win()
    assert driver.term == term
    driver._step(101.0)
    assert len(process.sent.claims) == 1
    assert acts(driver)


async def test_claim_is_repeated_under_its_request_id(process: Process) -> None:
    resend_s = process.driver.limits.resend_s
    for at_s in (100.0, 100.0 + resend_s / 2, 100.0 + resend_s):
        process.driver._step(at_s)
    first, again = process.sent.claims
    assert first == again


async def test_two_elected_coordinators_do_not_race_for_the_term(process: Process) -> None:
    driver, world = process.driver, process.world
    driver._step(100.0)
    ((term, _),) = process.sent.claims
    world.apply(ClaimCoordinator("another", term))
    await process.followed.follower.wait_for_epoch(world.image.epoch)
    assert driver.limits.resend_s < RECLAIM_S
    driver._step(100.0 + driver.limits.resend_s)
    assert len(process.sent.claims) == 1
    driver._step(100.0 + RECLAIM_S)
    assert [claimed for claimed, _ in process.sent.claims] == [term, term + 1]


async def test_slow_coordinator_still_excludes_dead_nodes(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens with hundreds of nodes, when all waiting requests are planned again after each epoch."""
    driver, world, now_s = process.driver, process.world, 1000.0

    def slow(memory: Memory, seen: Observed, limits: Limits) -> Steps:
        nonlocal now_s
        now_s += 4.0
        return next_steps(memory, seen, limits)

    clock = SimpleNamespace(monotonic=lambda: now_s, time_ns=time.time_ns)
    monkeypatch.setattr(driver_module, "time", clock)
    monkeypatch.setattr(driver_module, "next_steps", slow)
    driver._step(now_s)
    await process.win()
    world.apply(Exclude(("n3",)))
    await process.followed.follower.wait_for_epoch(world.image.epoch)
    for number in range(1, 10):
        now_s += 0.1
        for node_id in ("n1", "n2"):
            ack = ack_of(world.image, node_id, sequence=number)
            driver.on_ack(encode_ack(ack))
        driver._step(now_s)
    assert any(isinstance(each.command, ExcludeDead) for each in process.sent.commands)


@pytest.mark.parametrize("lacks", ["election", "the log's end", "the log"])
async def test_inactive_coordinator_sends_no_commands(process: Process, lacks: str) -> None:
    driver, follower = process.driver, process.followed.follower
    driver._step(100.0)
    await process.win()
    assert driver.caught_up
    if lacks == "election":
        driver.election.elected = False
    elif lacks == "the log's end":
        process.followed.caught_up.clear()
    else:
        follower.failure = RuntimeError("corrupt")
    driver._step(200.0)
    assert len(process.sent.claims) == 1
    assert driver.memory.round[:1] != (driver.term,)
    assert driver.caught_up is (lacks == "election")


async def test_joins_are_planned_in_a_thread(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of tokens takes up to a second. The look in the event loop uses the result.

    A node that has just sent its first ack joins the group, which is then planned again on the same image.
    """
    driver, world = process.driver, process.world
    driver._step(100.0)
    await process.win()
    for number in (4, 5):
        world.apply(join(number), f"join-n{number}")
    await process.followed.follower.wait_for_epoch(world.image.epoch)
    threads = list[threading.Thread]()
    plan = planning.plan_group

    def planned(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return plan(*given)

    monkeypatch.setattr(model, "plan_group", planned)
    for acks in (("n1", "n2", "n3", "n4"), ("n5",)):
        threads.clear()
        for node_id in acks:
            driver.on_ack(encode_ack(ack_of(world.image, node_id, sequence=1)))
        driver._step(101.0, await driver._steps_with_joins())
        assert threads and threading.main_thread() not in threads


async def test_rejection_is_recorded_once_unless_temporary(process: Process) -> None:
    driver, sent, look_s = process.driver, process.sent, process.driver.limits.resend_s
    driver._step(100.0)
    first = sent.outcome
    driver._step(100.0 + look_s)
    assert first.cancelled(), "the repeat has the only future of this id"
    (envelope, again) = sent.commands
    assert envelope.request_id == again.request_id
    sent.answers(Rejection(BUSY, "later"), taken=False)
    await asyncio.sleep(0)
    assert not driver.seen().refusals
    driver._step(100.0 + 2 * look_s)
    refusal = Rejection("stale_term", "another term is newer")
    sent.answers(refusal)
    await asyncio.sleep(0)
    assert driver.seen().refusals == {envelope.request_id: refusal}
