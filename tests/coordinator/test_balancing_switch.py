"""Balancing is switched off while tablets migrate, drain, split and move together for a merge."""

from __future__ import annotations

import random

import pytest

from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import proposal, tablet_verdicts
from stele.domain.commands import (
    AlterTable,
    CreateTable,
    Envelope,
    Leave,
    MoveTablets,
    Rejection,
    ResizeTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.schema import TableOptions
from stele.domain.names import BALANCER, RequestStatus, TransitionState
from stele.domain.planner.planned import Rule
from stele.domain.rules.schema import all_off
from stele.domain.tablets.maps import apart, held_by
from tests.coordinator.stories import status_of
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.epochs import code_of

OTHER = "music.bands"
BEFORE_READS_MOVE = (
    TransitionState.ALLOW_WRITE_BOTH_READ_OLD,
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.STREAMING,
)


def two_tables(tablets_of_each: int = 16) -> World:
    """Return three nodes with all tablets, and a new one with none."""
    world = with_table("a1 b1 c1", tablets_of_each)
    assert world.apply(CreateTable(OTHER)) is None
    world.add("d1", rack="r")
    world.until(lambda: status_of(world, "join-d1") is RequestStatus.DONE, "the join")
    return world


def held(world: World, table: str) -> dict[str, int]:
    nodes = [node for row in tablets(world, table) for node in row.reads]
    return {node: nodes.count(node) for node in sorted({*nodes})}


def asked(world: World, since: int = 0) -> list[Request]:
    """Return the moves that the balancer requested in the epochs after ``since``."""
    facts = (f for epoch in world.epochs if epoch.epoch > since for f in epoch.facts)
    rows = (f.request for f in facts if isinstance(f, RequestChanged))
    return [r for r in rows if r.actor == BALANCER and r.status is RequestStatus.PENDING]


def end_of(world: World, request_id: str) -> Request:
    """Return the request's last row in the log: requests of the balancer leave the state when they end."""
    facts = (f for epoch in world.epochs for f in epoch.facts if isinstance(f, RequestChanged))
    return [f.request for f in facts if f.request.request_id == request_id][-1]


def test_table_with_balancing_off_stays_while_others_are_balanced() -> None:
    world = two_tables()
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    before = held(world, TABLE)
    world.balances = True
    world.until(lambda: held(world, OTHER).get("d1") == 8, "the other table to be even", 300)
    world.pass_s(60)
    assert held(world, TABLE) == before
    assert proposal(world.image, Conditions(now_ms=world.now_ms)).moves == (), "it rests (I12)"
    verdicts = tablet_verdicts(world.image, TABLE, 0, Conditions(now_ms=world.now_ms))
    assert isinstance(verdicts, list)
    to_d1 = {(v.rule, v.reason) for v in verdicts if v.target == "d1"}
    assert to_d1 == {(Rule.STANDS_STILL, f"balancing of {TABLE} is off")}
    assert world.apply(SwitchBalancingOn(TABLE)) is None
    world.until(lambda: held(world, TABLE).get("d1") == 8, "it to be even", 300)


@pytest.mark.parametrize("scope", ["", "music"])
def test_wider_scope_switches_off_all_its_tables(scope: str) -> None:
    world = two_tables()
    assert world.apply(SwitchBalancingOff(scope)) is None
    world.balances = True
    world.pass_s(60)
    assert "d1" not in held(world, TABLE) and "d1" not in held(world, OTHER)


@pytest.mark.parametrize("scope", ["", "music", TABLE])
def test_leaving_node_is_drained_while_balancing_is_off(scope: str) -> None:
    world = two_tables()
    assert world.apply(SwitchBalancingOff(scope)) is None
    world.balances = True
    assert world.apply(Leave("a1"), "leave") is None
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 900)
    moved = [r for r in asked(world) if r.from_node != "a1"]
    name = {t.table_id: world.image.schema.full_name(t) for t in world.image.schema.with_tablets()}
    assert all(scope == TABLE and name[r.table_id] == OTHER for r in moved), "nothing else moves"


@pytest.mark.parametrize("seed", range(4))
def test_every_proposal_with_balancing_off_is_accepted(seed: int) -> None:
    """The planner and the log agree on which nodes drain."""
    chance = random.Random(seed)
    world = two_tables()
    world.balances = True
    refused = list[str]()
    submit = world.history.submit

    def watch(envelope: Envelope) -> Rejection | None:
        answer = submit(envelope)
        if envelope.actor == BALANCER and answer is not None:
            refused.append(answer.code)
        return answer

    world.history.submit = watch  # type: ignore[method-assign]
    for _ in range(6):
        scope = chance.choice(["", "music", TABLE, OTHER])
        off = chance.random() < 0.6
        world.apply(SwitchBalancingOff(scope) if off else SwitchBalancingOn(scope))
        if chance.random() < 0.5:
            world.apply(Leave(chance.choice(["a1", "b1", "c1", "d1"])))
        world.pass_s(chance.choice([1, 5, 20]))
    assert "balancing_off" not in refused


def test_table_with_balancing_off_is_not_resized_or_aligned() -> None:
    world = with_table("a1 b1 c1 d1", 8)
    row, first = tablets(world)[1], tablets(world)[0]
    free = min({*world.nodes} - {*row.reads, *first.reads} or {*world.nodes} - {*row.reads})
    move = TabletMove(table=TABLE, tablet=1, from_node=row.reads[0], to_node=free)
    assert world.apply(MoveTablets((move,)), "apart") is None
    world.until(lambda: status_of(world, "apart") is RequestStatus.DONE, "the move")
    (table,) = world.image.schema.with_tablets()
    assert len(apart(world.image.ring.placements[table.placement]))
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    world.balances = True
    for altered in (
        AlterTable(TABLE, TableOptions(min_tablet_count=32)),
        AlterTable(TABLE, TableOptions(max_tablet_count=2), reset=("min_tablet_count",)),
    ):
        assert world.apply(altered) is None
        world.pass_s(30)
        assert not asked(world)
    assert world.apply(ResizeTable(TABLE, 4), "mine") is None
    world.pass_s(30)
    assert not asked(world)
    (wait,) = [w for w in world.brain.steps.waits if "mine" in w.request_ids]
    assert f"balancing of {TABLE} is off, so they stay apart" in wait.what
    assert world.apply(SwitchBalancingOn(TABLE)) is None
    world.until(lambda: status_of(world, "mine") is RequestStatus.DONE, "the merge", 300)


def begun(world: World) -> list[Request]:
    return [
        request
        for request in world.image.requests.unfinished()
        if (found := world.image.topology.of_request(request.request_id)) is not None
        and found.state in BEFORE_READS_MOVE
    ]


def moving(world: World) -> list[Request]:
    """Return streaming moves of the balancer, of both tables. The new node does no work."""
    world.nodes["d1"].mute = True
    world.balances = True
    world.until(lambda: len({r.table_id for r in begun(world)}) == 2, "both to move", 60)
    return begun(world)


def test_started_migrations_finish_after_the_switch() -> None:
    world = two_tables()
    going = moving(world)
    assert world.apply(SwitchBalancingOff()) is None
    epoch = world.image.epoch
    world.nodes["d1"].mute = False
    for order in world.nodes["d1"].orders[:]:
        world.report(order)
    world.until(lambda: not world.image.topology.transitions, "what is under way", 120)
    assert {end_of(world, r.request_id).status for r in going} == {RequestStatus.DONE}
    assert not asked(world, since=epoch)


def test_started_migrations_are_cancelled_after_the_grace_period_by_scope() -> None:
    world = two_tables()
    going = moving(world)
    late_ms = world.now_ms + 20_000
    assert world.apply(SwitchBalancingOff(TABLE, abort_at_ms=late_ms)) is None
    world.pass_s(15)
    assert not any(end_of(world, r.request_id).cancelled for r in going), "it may finish till then"
    world.until(lambda: world.now_ms > late_ms, "the grace period")
    world.nodes["d1"].mute = False
    table = world.image.schema.table_named(TABLE)
    assert table is not None
    mine = [r for r in going if r.table_id == table.table_id]

    def all_gone() -> bool:
        return {end_of(world, r.request_id).status for r in mine} == {RequestStatus.CANCELLED}

    world.until(all_gone, "the moves of that table to be cancelled", 60)
    assert mine and "its grace period is over" in end_of(world, mine[0].request_id).error
    others = [end_of(world, r.request_id) for r in going if r.table_id != table.table_id]
    assert others and not any(r.cancelled for r in others)


def test_late_and_user_migrations_are_not_cancelled_by_the_switch() -> None:
    world = two_tables()
    row = tablets(world)[0]
    move = TabletMove(table=TABLE, tablet=0, from_node=row.reads[0], to_node="d1")
    world.nodes["d1"].mute = True
    assert world.apply(MoveTablets((move,)), "mine") is None
    world.pass_s(5)
    assert world.apply(SwitchBalancingOff(abort_at_ms=world.now_ms + 1)) is None
    world.balances = True
    world.pass_s(10)
    mine = world.image.request("mine")
    assert mine is not None and not mine.cancelled
    own = two_tables()
    own.balances = True
    late = (TransitionState.WRITE_BOTH_READ_NEW, TransitionState.USE_NEW)
    own.until(lambda: any(t.state in late for t in own.image.topology.open()), "reads to move")
    past = [t.transition_id for t in own.image.topology.open() if t.state in late]
    assert own.apply(SwitchBalancingOff(abort_at_ms=own.now_ms)) is None
    own.until(lambda: not own.image.topology.transitions, "what is under way", 120)
    assert {end_of(own, request_id).status for request_id in past} == {RequestStatus.DONE}


def test_drain_is_not_cancelled_by_the_switch() -> None:
    world = two_tables()
    world.balances = True
    world.until(
        lambda: not world.image.requests.unfinished_by_id and held_by(world.image)["d1"] > 8, "rest"
    )
    assert world.apply(Leave("a1"), "leave") is None
    assert world.apply(SwitchBalancingOff(abort_at_ms=world.now_ms)) is None
    epoch = world.image.epoch
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 900)
    assert asked(world, epoch)
    assert not any(end_of(world, r.request_id).cancelled for r in asked(world, epoch))


def test_expired_switch_is_on_again_and_recorded_in_the_log() -> None:
    world = two_tables()
    until_ms = world.now_ms + 30_000
    assert world.apply(SwitchBalancingOff(TABLE, until_ms=until_ms)) is None
    world.balances = True
    before = held(world, TABLE)
    world.pass_s(25)
    assert held(world, TABLE) == before
    world.until(lambda: held(world, TABLE).get("d1") == 8, "it to be even", 300)
    assert all_off(world.image.schema) == []
    (on,) = [epoch for epoch in world.epochs if epoch.command == "switch_balancing_on"]
    assert on.actor == BALANCER and on.reason == "its time limit has passed"


def test_older_expiry_does_not_end_a_newer_switch() -> None:
    """A balancer with an older image requests only the end of the older switch."""
    world = two_tables()
    assert world.apply(SwitchBalancingOff(TABLE, until_ms=world.now_ms + 1)) is None
    late: Image = world.image
    world.pass_s(1)
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    (command, _), *_ = proposal(late, Conditions(now_ms=world.now_ms)).commands()
    assert code_of(world.apply(command)) == "switched_meanwhile"
    assert [off.name for off in all_off(world.image.schema)] == [TABLE]
