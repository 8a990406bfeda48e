"""Switching balancing off and on: accepted and refused commands, the fold, and requests that end with it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.balancer.proposals import expired, switched_off
from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    DropTable,
    Envelope,
    Leave,
    MoveTablets,
    ResizeTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Truncate,
)
from stele.domain.ddl.schema import MAX_MS
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import RequestChanged, RequestForgotten, named
from stele.domain.model.schema import Balancing
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.rules.schema import all_off, off_for
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.epochs import code_of

BANDS = "music.bands"
SCOPES = ("", "music", TABLE)


def world_of_two(rf: int = 2) -> World:
    """Return two tables of eight tablets on four nodes."""
    world = with_table("a1 b1 c1 d1", 8, rf)
    assert world.apply(CreateTable(BANDS)) is None
    return world


def as_balancer(world: World, command: AnyCommand, name: str = "by the balancer") -> str:
    """Return the code of the rejection, or an empty string if the command was applied."""
    refused = world.submit(Envelope(request_id=named(name), command=command, actor=BALANCER))
    return "" if refused is None else refused.code


def free_move(world: World, tablet: int, source: str = "", table: str = TABLE) -> TabletMove:
    row = tablets(world, table)[tablet]
    target = min({*world.nodes} - {*row.reads})
    return TabletMove(table=table, tablet=tablet, from_node=source or row.reads[0], to_node=target)


@pytest.mark.parametrize("scope", SCOPES)
def test_only_balancer_commands_are_refused_while_balancing_is_off(
    scope: str,
) -> None:
    world = world_of_two()
    assert world.apply(SwitchBalancingOff(scope)) is None
    assert as_balancer(world, MoveTablets((free_move(world, 0),)), "move") == "balancing_off"
    assert as_balancer(world, ResizeTable(TABLE, 16), "resize") == "balancing_off"
    assert world.apply(MoveTablets((free_move(world, 0),))) is None
    assert world.apply(ResizeTable(TABLE, 16)) is None
    assert world.apply(SwitchBalancingOn(scope)) is None
    assert as_balancer(world, MoveTablets((free_move(world, 1),)), "again") == ""


@pytest.mark.parametrize("scope", SCOPES)
def test_pending_balancer_requests_end_when_balancing_is_switched_off(scope: str) -> None:
    """They end in the same epoch. Requests of users, of other tables, and for drains remain."""
    world = world_of_two()
    source, keeps = tablets(world)[3].reads
    own, users = [at for at, row in enumerate(tablets(world)) if keeps in row.reads and at != 3][:2]
    other = next(at for at, row in enumerate(tablets(world, BANDS)) if keeps in row.reads)
    assert as_balancer(world, MoveTablets((free_move(world, own, keeps),)), "own") == ""
    assert as_balancer(world, ResizeTable(TABLE, 16), "split") == ""
    assert as_balancer(world, MoveTablets((free_move(world, other, keeps, BANDS),)), "b") == ""
    assert world.apply(MoveTablets((free_move(world, users, keeps),)), "a user's") is None
    assert world.apply(Leave(source), "leave") is None
    assert as_balancer(world, MoveTablets((free_move(world, 3, source),)), "drains") == ""
    assert world.apply(SwitchBalancingOff(scope)) is None
    left = {request.request_id for request in world.image.requests.unfinished()}
    others = {named("b")} if scope == TABLE else set[str]()
    assert left == {"a user's", "leave", named("drains"), *others}
    ended = {
        fact.request.request_id: fact.request
        for fact in world.epochs[-1].facts
        if isinstance(fact, RequestChanged)
    }
    assert ended[named("own")].status is RequestStatus.CANCELLED
    assert f"is off since epoch {world.image.epoch}" in ended[named("own")].error
    assert ended[named("split")].status is RequestStatus.CANCELLED


def test_ended_balancer_move_is_removed_from_the_state() -> None:
    world = world_of_two()
    assert as_balancer(world, MoveTablets((free_move(world, 0),)), "own") == ""
    assert world.apply(SwitchBalancingOff()) is None
    assert world.image.request(named("own")) is None
    gone = [f.request_id for f in world.epochs[-1].facts if isinstance(f, RequestForgotten)]
    assert gone == [named("own")]
    assert world.apply(SwitchBalancingOn()) is None
    target = free_move(world, 0).to_node
    world.nodes[target].fails = 2 * world.limits.attempts
    assert as_balancer(world, MoveTablets((free_move(world, 0),)), "fails") == ""
    world.until(lambda: not world.image.requests.unfinished_by_id, "its end")
    assert world.image.request(named("fails")) is None
    rows = [f for epoch in world.epochs for f in epoch.facts if isinstance(f, RequestChanged)]
    assert rows[-1].request.status is RequestStatus.FAILED, "the log has it"
    world.until(lambda: not world.image.membership.uncleaned(), "its rows to be deleted")
    world.nodes[target].fails = 2 * world.limits.attempts
    assert world.apply(MoveTablets((free_move(world, 0),)), "mine") is None
    world.until(lambda: not world.image.requests.unfinished_by_id, "its end")
    mine = world.image.request("mine")
    assert mine is not None and mine.status is RequestStatus.FAILED


def test_switch_records_time_actor_and_reason_and_can_be_set_again() -> None:
    world = world_of_two()
    asked = Envelope(
        request_id="off",
        command=SwitchBalancingOff("music", until_ms=5000, abort_at_ms=100),
        actor="ada",
        reason="the night",
    )
    assert world.submit(asked) is None
    first = Balancing(
        off_since=world.image.epoch, until_ms=5000, abort_at_ms=100, actor="ada", reason="the night"
    )
    assert [(o.name, o.balancing) for o in all_off(world.image.schema)] == [("music", first)]
    assert world.apply(SwitchBalancingOff("music")) is None
    ((_, again),) = all_off(world.image.schema)
    assert (again.off_since, again.until_ms) == (world.image.epoch, 0)
    stale = SwitchBalancingOn("music", first.off_since)
    assert code_of(world.apply(stale)) == "switched_meanwhile"
    assert world.apply(SwitchBalancingOn("music", again.off_since)) is None
    assert all_off(world.image.schema) == []


def test_redundant_switch_on_changes_nothing_and_wider_scope_is_refused() -> None:
    world = world_of_two()
    assert world.apply(SwitchBalancingOn(TABLE)) is None
    assert world.epochs[-1].facts == ()
    assert world.apply(SwitchBalancingOff("music")) is None
    refused = world.apply(SwitchBalancingOn(TABLE))
    assert refused is not None and refused.code == "balancing_off"
    assert "balancing of music is off" in refused.message
    assert refused.hint == "`stele balance on music` switches that on."
    assert world.apply(SwitchBalancingOff()) is None
    refused = world.apply(SwitchBalancingOn(TABLE))
    assert refused is not None and refused.hint == "`stele balance on` switches that on."


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (SwitchBalancingOff("nothing"), "unknown_keyspace"),
        (SwitchBalancingOff("music.none"), "unknown_table"),
        (SwitchBalancingOff("."), "unknown_table"),
        (SwitchBalancingOn("nothing"), "unknown_keyspace"),
        (SwitchBalancingOff("music", until_ms=-1), "bad_time"),
        (SwitchBalancingOff("music", until_ms=MAX_MS + 1), "bad_time"),
        (SwitchBalancingOff("music", abort_at_ms=2**70), "bad_time"),
        (SwitchBalancingOff("music", until_ms=10, abort_at_ms=10), "bad_time"),
        (SwitchBalancingOff("ring"), "no_tablets"),
        (SwitchBalancingOff("ring.table"), "no_tablets"),
        (SwitchBalancingOn(TABLE, off_since=3), "switched_meanwhile"),
    ],
)
def test_invalid_switch_is_refused_with_a_hint(command: AnyCommand, refusal: str) -> None:
    world = world_with_a_ring()
    refused = world.apply(command)
    assert refused is not None and refused.code == refusal
    assert refused.message and refused.hint


def world_with_a_ring() -> World:

    world = world_of_two()
    assert world.apply(CreateKeyspace("ring", {"dc1": 1})) is None
    assert world.apply(CreateTable("ring.table")) is None
    return world


def test_recreated_table_has_balancing_on_and_a_truncated_one_keeps_it_off() -> None:
    world = world_of_two()
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    assert world.apply(Truncate(TABLE)) is None
    world.run()
    assert [off.name for off in all_off(world.image.schema)] == [TABLE]
    assert world.apply(DropTable(TABLE)) is None
    world.run()
    assert world.apply(CreateTable(TABLE)) is None
    assert all_off(world.image.schema) == []


@given(now=st.integers(0, 200), until=st.integers(1, 200))
def test_switch_is_off_until_its_time(now: int, until: int) -> None:
    world = WORLD
    image = world.image
    schema = msgspec.structs.replace(image.schema, balancing=Balancing(off_since=3, until_ms=until))
    image = msgspec.structs.replace(image, schema=schema)
    (table, _) = schema.with_tablets()
    is_off = now < until
    assert bool([*off_for(schema, table, now)]) == is_off
    assert bool(switched_off(image, now)) == is_off
    assert bool(expired(image, now)) == (not is_off)
    assert [*off_for(schema, table)], "the log knows no time"


WORLD = world_of_two()
