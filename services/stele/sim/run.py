"""One run from beginning to end, and what it comes to."""

import time
import traceback
from typing import Final

import msgspec

from stele.domain.commands import RestrictCommits, SwitchBalancingOn
from stele.domain.names import CommitMode
from stele.domain.schema.switches import all_off
from stele.sim.actions import schedule
from stele.sim.clients import KvClient
from stele.sim.kernel import us
from stele.sim.making import make_scenario
from stele.sim.scenario import DEFAULT_DURATION_S, Scenario
from stele.sim.violation import Violation, require
from stele.sim.world import KEPT_LINES, World
from stele.sim.writer import Writer

REST_LIMIT_S: Final = 600.0
"""Virtual seconds after the last fault in which the system must come to rest (I10)."""
LAST_WRITES_S: Final = 5.0
"""Clients go on for so long after the faults."""
RECALLED: Final = 6
"""Images of the past that each writer is asked for at the end."""
CORES_RAISE: Final = "the cores raise nothing"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The invariant that failed, what had to be, what is, and what happened before."""

    invariant: str
    expected: str
    found: str
    at_s: float
    before: tuple[str, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run; two runs of one scenario differ in ``real_s`` alone."""

    seed: int
    profile: str
    failure: Failure | None
    trace_hash: str
    virtual_s: float
    real_s: float
    events: int
    epochs: int
    losers: int
    redecided: int
    commands: int
    rejected: int
    barriers: int
    watched: int
    """Epochs told to watches."""
    writes: int
    reads: int
    faults: int
    requests: int
    lost_messages: int
    truncated: int
    checks: int
    finished: dict[str, int]
    """Topology requests by how they ended."""

    @property
    def passed(self) -> bool:
        return self.failure is None


def run_seed(seed: int, profile: str, duration_s: float = DEFAULT_DURATION_S) -> Result:
    return run_scenario(make_scenario(seed, profile, duration_s))


def run_scenario(scenario: Scenario, world: World | None = None) -> Result:
    """Run to the end or to the first violation."""
    began = time.perf_counter()
    world = World(scenario) if world is None else world
    failure = None
    try:
        world.found_scenario()
        schedule(world)
        world.kernel.run_until(us(scenario.duration_s))
        come_to_rest(world)
    except Violation as violation:
        failure = _failure(world, violation)
    except Exception as error:  # whatever a core raises is a finding
        where = " < ".join(
            f"{frame.name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)[-4:]
        )
        failure = _failure(world, Violation(CORES_RAISE, "no exception", f"{error!r} in {where}"))
    return _result(world, failure, time.perf_counter() - began)


def come_to_rest(world: World) -> None:
    """Heal, wait for rest, read everything once more, and compare all that must be equal."""
    world.heal()
    kernel, deadline_us = world.kernel, world.kernel.now_us + us(REST_LIMIT_S)
    kernel.run_until(kernel.now_us + us(LAST_WRITES_S))
    world.clients_work = False
    while world.unfinished() and kernel.now_us < deadline_us:
        if world.witness.image.commits.since_epoch:  # what froze it may have come after its thaw
            world.request(RestrictCommits(mode=CommitMode.OPEN))
        for off in all_off(world.witness.image.schema):  # a merge would wait for as long as it is
            world.request(SwitchBalancingOn(off.name))
        kernel.run_until(kernel.now_us + us(1.0))
    require(
        not world.unfinished(),
        "I10",
        f"everything comes to its end within {REST_LIMIT_S:g} s after the faults",
        "; ".join(world.unfinished()),
    )
    for client in world.clients[:1]:
        for keyspace, key in world.witness.data.readable():
            client.spawn(_read(client, keyspace, key))
    recalled = list[str]()
    for writer in world.writers:
        writer.spawn(_recall(writer, recalled))
    kernel.run_until(kernel.now_us + us(3.0))
    while len(recalled) < len(world.writers) and kernel.now_us < deadline_us:  # one may be paused
        kernel.run_until(kernel.now_us + us(1.0))
    require(
        len(recalled) == len(world.writers),
        "I8",
        "every metadata log gives its past",
        f"only {recalled} did",
    )
    world.witness.data.check_all("no acknowledged write is lost", "at the end")
    world.witness.data.check_registers()
    world.witness.check_final(world.followers(), world.log.records[: world.log.high])
    world.check_no_foreign_data()


async def _read(client: KvClient, keyspace: str, key: str) -> None:
    await client.read(keyspace, key)


async def _recall(writer: Writer, done: list[str]) -> None:
    """Images of the past, from nearly the whole of it."""
    oldest, newest = writer.history.oldest, writer.history.newest
    for epoch in range(oldest, newest + 1, max(1, (newest - oldest) // RECALLED)):
        image = await writer.history.image_at(epoch)
        writer.world.witness.recalls(writer.name, epoch, image)
    done.append(writer.name)


def _failure(world: World, violation: Violation) -> Failure:
    return Failure(
        invariant=violation.invariant,
        expected=violation.expected,
        found=violation.found,
        at_s=world.kernel.now_s,
        before=tuple(world.lines[-KEPT_LINES:]),
    )


def _result(world: World, failure: Failure | None, real_s: float) -> Result:
    witness, kernel = world.witness, world.kernel
    world.digest.update(f"{kernel.events} {kernel.now_us} {world.network.sent}".encode())
    world.digest.update(witness.image.state_id)
    statuses = [str(r.status) for r in witness.image.requests.requests.values()]
    checks = (
        witness.checks
        + witness.nodes.checks
        + witness.nodes.gates.checks
        + witness.data.checks
        + witness.data.truncations.checks
        + witness.snapshots.checks
        + witness.commands.told
        + witness.commands.barriers
    )
    return Result(
        seed=world.scenario.seed,
        profile=world.scenario.profile,
        failure=failure,
        trace_hash=world.digest.hexdigest(),
        virtual_s=kernel.now_s,
        real_s=real_s,
        events=kernel.events,
        epochs=witness.image.epoch,
        losers=witness.losers,
        redecided=sum(w.pipeline.redecided for w in world.writers if w.alive),
        commands=witness.commands.told,
        rejected=witness.commands.rejected,
        barriers=witness.commands.barriers,
        watched=witness.told,
        writes=witness.data.writes,
        reads=witness.data.reads,
        faults=world.faults,
        requests=world.requests,
        lost_messages=world.network.lost,
        truncated=world.log.truncated,
        checks=checks,
        finished={status: statuses.count(status) for status in sorted(set(statuses))},
    )
