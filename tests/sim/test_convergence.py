"""Actions of the simulated operator for a stuck cluster, and the observations meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from stele.domain import commands
from stele.domain.base import Rejection
from stele.domain.evolve import evolve
from stele.domain.fencing import Hold
from stele.domain.names import NodeState
from stele.domain.recovery import NewLog, Why, recovered
from stele.domain.rules.schema import all_off
from stele.domain.tablets.maps import row_of
from stele.log.codec import decode_epoch, encode_epoch
from stele_simulator.kernel import us
from stele_simulator.processes import convergence, run
from stele_simulator.processes.data import DC, TABLE
from stele_simulator.processes.disaster import DEAD, Disaster
from stele_simulator.processes.members import NodeMachine
from stele_simulator.processes.operator import Operator
from stele_simulator.processes.records import ZERO
from stele_simulator.processes.world import World
from stele_simulator.ranges_in_use import data_ids
from stele_simulator.result import Result
from stele_simulator.scenario import Action

pytestmark = pytest.mark.slow

QUIET = Disaster(seed=3)
"""Processes that nothing happens to."""
LIMIT_S = 120.0
DEAD_AT_SOME_TIME = (Action(at_s=10_000.0, kind=DEAD),)
"""A death beyond the end of the run, which allows the operator to use force."""

Play = Callable[[World], None]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[Disaster, Play], Result]:
    """Return the result of a scenario that runs only ``play`` in its founded world."""

    def run_it(scenario: Disaster, play: Play) -> Result:
        def founded(world: World) -> None:
            world.found()
            play(world)

        monkeypatch.setattr(run, "_run", founded)
        return run.run_disaster_scenario(scenario)

    return run_it


def _until(world: World, is_so: Callable[[], bool], what: str) -> None:
    deadline_us = world.kernel.now_us + us(LIMIT_S)
    while not is_so() and world.kernel.now_us < deadline_us:
        world.run_until(world.kernel.now_us + us(1.0))
    assert is_so(), what


def _ask(world: World, command: commands.AnyCommand) -> None:
    world.mover.spawn(world.mover.ask(world.mover.envelope(command)))


def test_operator_switches_balancing_on_if_the_cluster_is_stuck(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """A merge waits for it, the removal of a dead node for the merge, and a new node for its address."""

    def play(world: World) -> None:
        def off(_: World) -> str:
            return "balancing is off" if all_off(world.witness.image.schema) else ""

        _ask(world, commands.SwitchBalancingOff(""))
        _until(world, lambda: bool(off(world)), "balancing is switched off")
        convergence._until(world, Operator(world), off, "balancing is on")

    result = played(msgspec.structs.replace(QUIET, tablets=4), play)
    assert result.passed, result.failure


def _is_dead_and_excluded(world: World, node: NodeMachine) -> None:
    node.is_off = True
    node.crash(power=True)
    _ask(world, commands.Exclude((node.name,), force=True))
    _until(world, lambda: bool(world.witness.image.membership.excluded()), "it is excluded")
    node.is_off = False


def _another_takes_its_place(world: World, dead: NodeMachine) -> None:
    def left(_: World) -> str:
        row = world.witness.image.node(dead.node_id)
        is_done = row is not None and row.state is NodeState.NORMAL
        return "" if is_done and dead.node_id != dead.name else f"{dead.node_id}: {row}"

    convergence._until(world, Operator(world), left, "another node is in its place")
    assert dead.replaces == dead.name


def test_dead_only_node_of_a_rack_is_replaced(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """The balancer cancels its removal, since no node can take its tablets."""

    def play(world: World) -> None:
        dead = world.nodes[2]
        world.run_until(us(5.0))
        world.callers_work = False
        _is_dead_and_excluded(world, dead)
        dead.boot()

        _another_takes_its_place(world, dead)

    cluster = msgspec.structs.replace(
        QUIET, nodes=5, members=5, racks=3, copies=3, least_copies=2, tablets=4
    )
    result = played(cluster, play)
    assert result.passed, result.failure


def test_dead_last_node_of_a_named_rack_is_replaced(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """Its removal is rejected with that reason: no node may use its address before it is replaced."""

    def play(world: World) -> None:
        dead, witness = world.nodes[2], world.witness
        world.run_until(us(5.0))
        world.callers_work = False
        named = commands.CreateKeyspace(
            "named", {}, tablets=True, initial_tablets=2, racks={DC: ("r1", "r2", "r3")}
        )
        _ask(world, named)
        _until(world, lambda: witness.image.schema.named("named") is not None, "it is there")
        _is_dead_and_excluded(world, dead)
        dead.renew()

        _another_takes_its_place(world, dead)

    cluster = msgspec.structs.replace(
        QUIET, nodes=3, members=3, racks=3, copies=2, tablets=4, requests=DEAD_AT_SOME_TIME
    )
    result = played(cluster, play)
    assert result.passed, result.failure


def test_dead_node_returns_if_its_replacement_is_rejected(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """The new node does not know it yet: with its folder deleted, no node would have that address."""

    def play(world: World) -> None:
        node, witness = world.nodes[0], world.witness
        world.run_until(us(5.0))
        world.callers_work = False
        node.crash(power=True)
        node.renew(replaces=node.name)
        _until(world, lambda: bool(witness.image.requests.unfinished()), "its request is there")
        (asked,) = witness.image.requests.unfinished()
        node.pause(LIMIT_S)
        _ask(world, commands.Cancel(asked.request_id))
        _until(world, lambda: not witness.image.requests.unfinished(), "it is rejected")

        def away(_: World) -> str:
            return "" if node.node_id == node.name and node.is_up else node.node_id

        convergence._until(world, Operator(world), away, "who was there before is there again")

    result = played(msgspec.structs.replace(QUIET, members=3), play)
    assert result.passed, result.failure


def test_absent_replica_is_replaced_after_a_stable_coordinator_term(
    played: Callable[[Disaster, Play], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits for that: a coordinator that has just started, or receives no records, ignores silence."""
    monkeypatch.setattr(run, "REPLACED_S", 20.0)

    def play(world: World) -> None:
        _until(world, lambda: len(world.witness.members()) == run.MEMBERS, "there are members")
        absent, (coordinator,) = world.machines[world.witness.members()[0]], world.coordinators
        absent.is_off = True
        absent.crash()
        for at_s in range(10, 60, 15):
            world.kernel.at(us(at_s), None, coordinator.crash)
            world.kernel.at(us(at_s + 1), None, coordinator.boot)
        run._is_replaced(world, absent)
        assert absent.name not in world.witness.members()
        assert world.kernel.now_us > us(55.0)

    result = played(msgspec.structs.replace(QUIET, replicas=4, coordinators=1), play)
    assert result.passed, result.failure


def test_dead_nodes_are_removed_while_a_restore_waits_for_their_tablets(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """No other process can end the restore: it neither continues nor fails before."""

    def play(world: World) -> None:
        witness = world.witness
        world.run_until(us(5.0))
        world.callers_work = False
        _ask(world, commands.SnapshotTable(name=TABLE, snapshot="before"))
        _until(world, lambda: bool(witness.image.table_snapshots.snapshots), "there is a snapshot")
        table = witness.image.schema.table_named(TABLE)
        assert table is not None
        holders = row_of(witness.image.ring.placements[table.placement], 0).reads
        dead = [node for node in world.nodes if node.node_id in holders]
        for node in dead:
            node.is_off = True
            node.crash(power=True)
        _ask(world, commands.Exclude(holders, force=True))
        _until(world, lambda: len(witness.image.membership.excluded()) == 2, "they are excluded")
        _ask(world, commands.RestoreTable(name=TABLE, snapshot="before"))
        _until(world, lambda: bool(witness.image.requests.unfinished()), "a restore waits")
        for node in dead:
            node.is_off = False
            node.boot()
        convergence._until(
            world, Operator(world), convergence._unfinished, "others are in their places"
        )
        assert not {*holders} & witness.image.membership.normal().keys()

    cluster = msgspec.structs.replace(
        QUIET, nodes=4, members=4, tablets=4, requests=DEAD_AT_SOME_TIME
    )
    result = played(cluster, play)
    assert result.passed, result.failure


def test_images_are_compared_once_all_have_the_newest_epoch(
    played: Callable[[Disaster, Play], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request may arrive while the past is read."""

    def one_more(world: World, _: Operator) -> None:
        epoch = world.witness.image.epoch
        _ask(world, commands.SetSetting("one_more", "1"))
        while world.witness.image.epoch == epoch:
            world.run_until(world.kernel.now_us + 100)

    monkeypatch.setattr(convergence, "_recall", one_more)
    result = played(QUIET, lambda world: convergence.converge(world, Operator(world)))
    assert result.passed, result.failure


def test_recovery_that_died_with_its_log_is_given_up_for_other_histories(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """Two replicas are unavailable, and the third, which is behind, dies before its snapshot is written."""

    def play(world: World) -> None:
        operator, (behind, *others) = Operator(world), world.replicas
        world.run_until(us(10.0))
        behind.is_off = True
        behind.crash()
        world.run_until(us(15.0))
        held = world.witness.image.epoch
        world.run_until(us(20.0))
        for other in others:
            other.is_off = True
            other.crash()
        for machine in (*world.logs, *world.coordinators, *world.nodes):
            machine.crash()
        world.lose_topic(silent=False)
        behind.is_off = False
        behind.boot()
        world.run_until(us(40.0))
        behind.disk.trap = 6
        assert operator.recover()
        assert world.witness.image.epoch < held
        behind.disk.trap = -1
        for machine in world.machines.values():
            machine.is_off = False
            if not machine.is_up:
                machine.boot()
        world.run_until(us(100.0))
        for _ in range(4):
            world.run_until(world.kernel.now_us + us(20.0))
            if not operator.recover():
                break
        assert world.witness.image.epoch > held

    result = played(QUIET, play)
    assert result.passed, result.failure


@pytest.mark.parametrize("others_are_behind", [False, True])
def test_recovery_continues_without_the_disk_of_its_writer(
    played: Callable[[Disaster, Play], Result], *, others_are_behind: bool
) -> None:
    """The operator recovers again from another process, and no epoch is lost.

    The others were away when the only snapshot of the new log existed. If they lack the last epoch
    of the old log, other processes still hold it in memory.
    """

    def play(world: World) -> None:
        operator, (writer, *others) = Operator(world), world.replicas
        world.callers_work = False
        world.run_until(us(10.0))
        _until(world, lambda: not convergence._unfinished(world), "no request is open")
        _until(world, lambda: not convergence._behind(world), "every replica has every epoch")
        for other in others:
            other.is_off = True
            other.crash()
        if others_are_behind:
            held = world.witness.image.epoch
            _ask(world, commands.SetSetting("one_more", "1"))
            _until(world, lambda: world.witness.image.epoch > held, "the setting is applied")
        head = world.witness.head
        world.lose_topic(silent=False)
        world.run_until(world.kernel.now_us + us(20.0))
        assert not operator.recover()
        writer.is_off = True
        writer.crash()
        writer.disk.wipe()
        writer.lost_its_disk = True
        for replica in world.replicas:
            replica.is_off = False
            replica.boot()
        convergence._until(
            world, operator, convergence._unwell, "everybody reads the recovered log"
        )
        assert len(world.witness.recoveries.asked) == 2
        assert head in world.witness.line(world.witness.head)

    result = played(QUIET, play)
    assert result.passed, result.failure


def test_join_waiting_for_a_removed_nodes_address_proceeds(
    played: Callable[[Disaster, Play], Result],
) -> None:
    def play(world: World) -> None:
        node, witness = world.nodes[2], world.witness
        world.run_until(us(5.0))
        node.is_off = True
        node.crash(power=True)
        _ask(world, commands.Exclude((node.name,)))
        _until(world, lambda: bool(witness.image.membership.excluded()), "it is excluded")
        node.is_off = False
        node.renew(replaces=node.name, waits=True)
        _until(
            world,
            lambda: node.node_id in witness.image.membership.normal(),
            "another node is a member",
        )
        gone = witness.image.node(node.name)
        assert gone is not None and gone.state is NodeState.LEFT

    cluster = msgspec.structs.replace(QUIET, nodes=5, members=5, copies=3, least_copies=2)
    result = played(cluster, play)
    assert result.passed, result.failure


def test_refusal_to_serve_is_checked_against_the_log_of_its_time(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """Lost epochs may have returned with a recovery."""
    started = list[bytes]()

    def play(world: World) -> None:
        world.callers_work = False
        world.run_until(us(10.0))
        node = world.nodes[0]
        for ended_at in (ZERO, world.witness.head):
            node.crash()
            node.is_refused, node.ended_at = True, ended_at
            convergence._accept_losses(world)
            assert node.alive and not node.accept
            started.append(ended_at)

    failure = played(QUIET, play).failure
    assert failure is not None and failure.expected.startswith("n1 serves, since epoch")
    assert started == [ZERO]


def test_requests_end_with_a_process_that_stops(
    played: Callable[[Disaster, Play], Result],
) -> None:
    """They do not count for the next process."""

    def play(world: World) -> None:
        world.callers_work = False
        world.run_until(us(10.0))
        node = world.nodes[1]
        number, image = node.incarnation, node.image
        assert image is not None and image.topology.version in world.witness.log.by_version
        hold = Hold(image.topology.version, data_ids(image)[0], 0)
        world.holds.begins(node, hold, image.topology.version)
        assert world.holds._of(node)
        node.end()
        _until(world, lambda: node.is_up and node.incarnation > number, "it runs again")
        assert not world.holds._of(node)

    result = played(QUIET, play)
    assert result.passed, result.failure


def test_recovery_continues_from_epochs_read_before_a_rollback_was_noticed(
    played: Callable[[Disaster, Play], Result],
) -> None:
    def play(world: World) -> None:
        world.run_until(us(5.0))
        witness, head = world.witness, world.witness.image
        newest = decode_epoch(witness.records[witness.head].value)
        unseen = msgspec.structs.replace(
            newest,
            prev_state_id=head.state_id,
            state_id=_next(head.state_id),
            epoch=head.epoch + 1,
            request_id="",
            command="noop",
            facts=(),
        )
        witness.hurt(witness._heads.index(witness.head), anew=False)
        witness.durable(world.topic.high, encode_epoch(unseen))
        assert witness.image.epoch < head.epoch
        read = evolve(head, unseen)
        new = NewLog(
            log_id=_next(head.log_id), state_id=_next(read.state_id), topic_id="t", at_ms=1
        )
        recovery = recovered(read, new, Why(actor="operator", reason="it was lost"))
        assert not isinstance(recovery, Rejection)
        witness.durable(world.topic.high + 1, encode_epoch(recovery))
        assert witness.image.epoch == unseen.epoch + 1

    result = played(QUIET, play)
    assert result.passed, result.failure


def _next(number: bytes) -> bytes:
    return (int.from_bytes(number) + 1).to_bytes(len(number))
