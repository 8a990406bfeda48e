"""One disaster from beginning to end, and its result."""

import gc
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from stele.catch_up import filling, holdings
from stele.domain import request_memory
from stele.domain.image import EMPTY
from stele.domain.names import NodeState
from stele.log import record_builder
from stele.log.history import Bounds, History
from stele.metadata_log import writer
from stele.runtime import starting
from stele_simulator.kernel import Clock, Kernel, us
from stele_simulator.processes.broker import BROKER, EPOCHS
from stele_simulator.processes.convergence import REST, become_well, converge, look_again
from stele_simulator.processes.delayed_fetches import DEAF
from stele_simulator.processes.delayed_requests import LATE
from stele_simulator.processes.disaster import BACK, FULL, LOST, Disaster, Round, make_disaster
from stele_simulator.processes.interposed import Current, interposed
from stele_simulator.processes.machine import RESTART_S, Machine
from stele_simulator.processes.members import ReplicaMachine
from stele_simulator.processes.memoization import remember
from stele_simulator.processes.older_disk_copies import OLDER
from stele_simulator.processes.operator import Operator
from stele_simulator.processes.releases import bring
from stele_simulator.processes.rival_coordinators import RIVALS
from stele_simulator.processes.stale_leaders import OLD_END
from stele_simulator.processes.step_faults import KINDS
from stele_simulator.processes.stores import watch
from stele_simulator.processes.swapped_disks import SWAPPED
from stele_simulator.processes.world import CORES_RAISE, DEAD_AFTER_S, KEPT_LINES, World
from stele_simulator.result import Failure, Result
from stele_simulator.scenario import Action
from stele_simulator.violation import Violation

BEFORE_S: Final = 10.0
GHOSTS_S: Final = 60.0
AFTER_S: Final = 30.0
"""Between a recovery and the return of who missed it."""
ATTEMPTS: Final = 4
MEMBERS: Final = 3
"""Members of the archive, where there are enough replicas."""
REPLACED_S: Final = 90.0
NOTICED_S: Final = DEAD_AFTER_S + 25.0
"""A term that nothing disturbs for so long has noticed who is silent, and seen others take that place."""
WATCHED_LIMIT_S: Final = 600.0
"""Time until the bad weather is over."""
PAUSE_S: Final = 8.0
SMALL_PIECES: Final = 16
SMALL_HISTORY: Final = Bounds(mark_every=4, marks=6, images=4, recent_records=12, read_records=5)
"""A run of a hundred epochs goes past all of them."""
COLLECTED: Final = (100_000, 50, 100)
"""As ``gc.set_threshold`` has it."""


Show = Callable[[str], None]


def run_disaster(seed: int, show: Show | None = None) -> Result:
    """The run of a seed; ``show`` is given every line of its trace."""
    return run_disaster_scenario(make_disaster(seed), show)


def run_disaster_scenario(scenario: Disaster, show: Show | None = None) -> Result:
    """Run to the end or to the first violation."""
    began = time.perf_counter()
    world: World | None = None
    failure = None
    current = Current(Nobody(scenario.seed))
    with seldom_collected(), interposed(current, f"{scenario.profile}/{scenario.seed}") as patch:
        remember(patch)
        patch.attribute(starting, "SHORT_RECORDS", scenario.short_records)
        patch.attribute(filling, "PIECE_EPOCHS", SMALL_PIECES)
        if scenario.compared_epochs:
            patch.attribute(holdings, "COMPARED_EPOCHS", scenario.compared_epochs)
        if scenario.apart:
            patch.attribute(record_builder, "LARGE_ROWS", 0)
        patch.attribute(request_memory, "GENERATION", scenario.memory.size)
        scenario.records.limit(patch)
        if scenario.upgrades:
            bring(patch)
        if scenario.watches:
            patch.attribute(writer, "History", partial(History, bounds=SMALL_HISTORY))
        world = World(scenario, current, keep_trace=show is not None)
        watch(patch, world, lambda: current.who)
        try:
            _run(world)
        except Violation as violation:
            failure = violation
        except Exception as error:  # whatever production code raises is a finding
            frames = traceback.extract_tb(error.__traceback__)[-5:]
            where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
            failure = Violation(CORES_RAISE, "no exception", f"{error!r} in {where}")
        finally:
            world.end()
    if show is not None:
        for line in world.lines:
            show(line)
    return _result(world, failure, time.perf_counter() - began)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """A run makes millions of small things, and few circles: to look for these took a tenth of its time."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Nobody:
    """Runs before there is a world."""

    def __init__(self, seed: int) -> None:
        kernel = Kernel(f"nobody/{seed}")
        self.clock = Clock(kernel)
        self.chance = kernel.random("nobody")

    def note(self, level: str, text: str, values: dict[str, object]) -> None:
        """Discard the record."""


def _run(world: World) -> None:
    operator = Operator(world)
    world.found()
    for action in world.scenario.actions:
        world.kernel.at(us(action.at_s), None, _act, world, action)
    for number, each in enumerate(world.scenario.rounds):
        _round(world, operator, each, number)
    for action in world.scenario.silences:
        become_well(world, operator)
        world.silences.pass_by(action)
    converge(world, operator)


# -- every day


def _act(world: World, action: Action) -> None:
    if action.kind in KINDS:
        world.step_faults.wait_for(action)
        return
    world.faults += 1
    if action.kind == "leader":
        world.topic.change_leader(action.seconds)
        world.trace("the leader changes")
        return
    begins = {
        OLD_END: world.stale_leaders.begin,
        SWAPPED: world.swaps.begin,
        OLDER: world.older_disk_copies.begin,
        DEAF: world.delayed_fetches.begin,
        RIVALS: world.rivals.begin,
    }
    if action.target == world.redis.name:
        _act_on_redis(world, action)
    elif action.kind in begins:
        begins[action.kind](action)
    elif action.target in world.victims:  # else it was left out of a scenario that is being shrunk
        _act_on_machine(world, world.victims[action.target], action)


def _act_on_machine(world: World, machine: Machine, action: Action) -> None:
    if action.kind in ("crash", "power", "pause"):
        machine.behind(action.number, partial(_stop, world, machine, action))
    elif action.kind == "slow":
        machine.slow(action.seconds)
        world.trace(f"the disk of {machine.name} is slow for {action.seconds} s")
    elif action.kind == FULL:
        machine.fill_disk(action.seconds)
        world.trace(f"the disk of {machine.name} is full for {action.seconds} s")
    elif action.kind == "trap":
        machine.disk.trap = action.number
    elif action.kind == LATE:
        world.delayed_requests.begin(machine.name, action.seconds)
    elif action.kind == "cut":
        _cut(world, machine, action)


def _stop(world: World, machine: Machine, action: Action) -> None:
    if action.kind == "pause":
        machine.pause(action.seconds)
        world.trace(f"{machine.name} stands still for {action.seconds} s")
    else:
        machine.crash(power=action.kind == "power")
        machine.start_later(action.seconds)


def _act_on_redis(world: World, action: Action) -> None:
    redis = world.redis
    if action.kind == "flush":
        redis.flush()
    elif action.kind == "fail_over":
        redis.fail_over()
    else:
        names = [each.name for each in (*world.guards, *world.workers)]
        pairs = {pair for n in names for pair in ((n, redis.name), (redis.name, n))}
        key = -int(action.at_s * 1000)
        world.cut(key, pairs, action.seconds)
        world.trace(f"Redis is away for {action.seconds} s")


def _cut(world: World, machine: Machine, action: Action) -> None:
    """0: both ways, 1: only what goes in, 2: only what comes out, 3: only from the brokers, 4: from all but the
    nodes who know the log.
    """
    name, others = machine.name, [*world.victims, BROKER.name]
    into = {(other, name) for other in others if other != name}
    out = {(name, other) for other in others if other != name}
    broker = {(name, BROKER.name), (BROKER.name, name)}
    knowing = [each.name for each in (*world.logs, *world.replicas)]
    log = broker | {pair for each in knowing for pair in ((each, name), (name, each))}
    pairs = (into | out, into, out, broker, log)[action.number]
    key = int(action.at_s * 1000)
    world.cut(key, pairs, action.seconds)
    world.trace(f"{name} is cut off ({action.number}) for {action.seconds} s")


# -- disasters


def _round(world: World, operator: Operator, each: Round, number: int) -> None:
    kernel = world.kernel
    world.run_until(kernel.now_us + us(max(0.0, each.after_s - BEFORE_S)))
    copies = {replica.name: replica.disk.copy() for replica in world.replicas}
    absent = world.machines.get(each.absent)
    if absent is not None:
        world.trace(f"{absent.name} is off")
        absent.is_off = True
        absent.crash()
    world.run_until(kernel.now_us + us(BEFORE_S))
    _hurt_a_disk(world, each, copies)
    had = _hurt_the_topic(world, each)
    if each.ghosts:
        _send_ghosts(world, each, had)
    if each.restart:
        for machine in world.machines.values():
            machine.crash()
            machine.start_later(RESTART_S * world.chance.random())
    world.run_until(kernel.now_us + us(each.wait_s))
    if each.kind != "nothing":
        _recover(world, operator, each)
    if absent is not None:
        world.run_until(kernel.now_us + us(AFTER_S))
        _is_replaced(world, absent)
        absent.is_off = False
        absent.boot()


def _is_replaced(world: World, absent: Machine) -> None:
    """Its place in the archive is another's, where there is one, once a coordinator has had time to notice."""
    if len(world.replicas) <= MEMBERS:
        return
    since_us = world.kernel.now_us
    term, term_us = _undisturbed_term(world), since_us
    while absent.name in world.witness.members():
        waited_us, watched_us = (world.kernel.now_us - each_us for each_us in (since_us, term_us))
        had_time = term is not None and watched_us >= us(NOTICED_S)
        if waited_us >= us(REPLACED_S if had_time else WATCHED_LIMIT_S):
            break
        if any(machine.failure for machine in world.machines.values()):
            return  # the log is lost again, or was not recovered
        world.run_until(world.kernel.now_us + us(1.0))
        if term != (term := _undisturbed_term(world)):
            term_us = world.kernel.now_us
    world.demand(
        absent.name not in world.witness.members(),
        REST,
        f"{absent.name}, which has been off for long, is not a member of the archive any more",
        f"the members are {', '.join(world.witness.members())}",
    )


def _undisturbed_term(world: World) -> tuple[int, str, int] | None:
    """The term, its holder and when that was started; none while it is away, asleep, or deaf to the log."""
    coordinator, now_us = world.witness.image.topology.coordinator, world.kernel.now_us
    machine = world.machines.get(coordinator.holder)
    if machine is None or not machine.is_up or machine.paused_until_us > now_us:
        return None
    if not all(world.network.reaches(each, machine.name) for each in (BROKER.name, EPOCHS)):
        return None
    return coordinator.term, machine.name, machine.started_us


def _hurt_the_topic(world: World, each: Round) -> list[bytes]:
    if each.kind == LOST:
        world.faults += 1
        return world.lose_topic(silent=each.silent)
    if each.kind == BACK:
        world.faults += 1
        return world.roll_back(each.share, silent=each.silent)
    return []


def _send_ghosts(world: World, each: Round, had: list[bytes]) -> None:
    """Old writers that were asleep, or producers that try again: their records come once more."""
    for _ in range(each.ghosts if had else 0):
        later_us = us(GHOSTS_S * world.chance.random() ** 2)
        value = world.chance.choice(had)
        world.kernel.at(world.kernel.now_us + later_us, None, world.topic.land, value)


def _hurt_a_disk(world: World, each: Round, copies: dict[str, dict[str, bytes]]) -> None:
    replica = next((r for r in world.replicas if r.name == each.victim), None)
    if replica is None:
        return
    world.faults += 1
    if each.disk_fault == "flip":
        _flip(world, replica)
        return
    replica.crash()
    replica.lost_its_disk = True
    if each.disk_fault == "wipe":
        replica.disk.wipe()
    else:
        replica.disk.put_back(copies[replica.name])
    world.trace(f"the disk of {replica.name}: {each.disk_fault}")
    replica.start_later(1.0 + 5 * world.chance.random())


def _flip(world: World, replica: ReplicaMachine) -> None:
    """A bit of a segment or snapshot, while the process runs or not."""
    names = sorted(name for name in replica.disk.files if name.endswith(".avro"))
    if names:
        name = world.chance.choice(names)
        replica.lost_its_disk = True
        replica.disk.flip(name, world.chance.random())
        world.trace(f"a bit of {name} of {replica.name} is another one")


def _recover(world: World, operator: Operator, each: Round) -> None:
    """The operator tries until a replica says that it is done, or that there is nothing to do."""
    for attempt in range(ATTEMPTS):
        if each.trap >= 0 and attempt == 0:
            for replica in world.replicas:
                if replica.alive and replica.failure is not None:
                    replica.disk.trap = each.trap
                    break
        why = operator.recover(twice=each.twice)
        for replica in world.replicas:
            replica.disk.trap = -1
        if not why:
            return
        world.trace(f"not recovered: {why}"[:300])
        if "without trouble" in why:
            look_again(world, operator)
            return
        world.run_until(world.kernel.now_us + us(PAUSE_S))


def _result(world: World, violation: Violation | None, real_s: float) -> Result:
    witness, kernel = world.witness, world.kernel
    world.digest.update(f"{kernel.events} {kernel.now_us} {world.network.sent}".encode())
    world.digest.update(witness.head)
    failure = None
    if violation is not None:
        failure = Failure(
            invariant=violation.invariant,
            expected=violation.expected,
            found=violation.found,
            at_s=kernel.now_s,
            before=tuple(world.lines[-KEPT_LINES:]),
        )
    promised = witness.promises.told.values()
    image = witness.image_at(witness.head) or EMPTY  # the newest record may be the failure
    return Result(
        seed=world.scenario.seed,
        profile=world.scenario.profile,
        failure=failure,
        trace_hash=world.digest.hexdigest(),
        virtual_s=kernel.now_s,
        real_s=real_s,
        events=kernel.events,
        epochs=witness.epoch_of(witness.head),
        losers=len(witness.records) - len(witness.line(witness.head)),
        commands=len(promised),
        rejected=sum(not outcome.applied for outcome in promised),
        barriers=witness.barriers.passed,
        watched=sum(watch.told for watch in world.watches),
        writes=world.rows.writes,
        reads=world.rows.reads,
        faults=world.faults,
        requests=sum(each.applied for each in world.requesters),
        lost_messages=world.network.lost,
        truncated=world.topic.begin,
        checks=world.checks,
        finished={
            "recovered": len(witness.recoveries.first_states),
            "lost outcomes": witness.recoveries.lost_epochs,
            "permissions": witness.permissions.given,
            "stale requests": world.stores.stale,
            "truncations": world.truncations.done,
            "old ends": world.stale_leaders.told,
            "refused with another's disk": world.swaps.refused,
            "refused with an older copy": world.older_disk_copies.refused,
            "late requests": world.delayed_requests.requests,
            "traps": world.step_faults.sprung,
            "deaf processes": world.delayed_fetches.times,
            "rival coordinators": world.rivals.times,
            "silences": world.silences.times,
            "ids too old": world.expired_ids.refused,
            "decisions in parts": witness.log.in_parts,
            "too large": witness.log.too_large,
            "owed reads": world.read_availability.owed,
            "restored": world.backups.restored,
            "stopped by a feature": world.roller.times_stopped,
            "changes": world.changes.seen,
            "agreements": world.agreement.agreed,
            "columns read and written": world.columns.done,
            "refused columns": world.columns.refused,
            **{f"by balancer: {name}": count for name, count in sorted(witness.balancing.items())},
            "left": sum(n.state is NodeState.LEFT for n in image.membership.nodes.values()),
        },
    )
