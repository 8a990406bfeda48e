"""No operation, cancel or exclusion costs the last live copy of acknowledged writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stele.domain.commands import (
    Cancel,
    Cleanup,
    CreateKeyspace,
    Envelope,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveTablets,
    Remove,
    SwitchBalancingOff,
)
from stele.domain.model.operations import TabletMove
from stele.domain.names import BALANCER, UNFINISHED, OrderKind, RequestStatus, TransitionState
from stele.domain.topology.operations.base import gaining_nodes
from tests.coordinator.stories import error_of, reach, status_of
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.test_why import told
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of

STATE = TransitionState


def migrating(rf: int, state: TransitionState) -> tuple[World, str, str]:
    """Return the world, source and target of migration "move", which has just reached a state."""
    world = with_table("a1 b1 c1 d1", 1, rf=rf)
    (row,) = tablets(world)
    source, target = row.reads[0], min({"a1", "b1", "c1", "d1"} - {*row.reads})
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    assert (
        world.submit(Envelope(request_id="move", command=MoveTablets((move,)), actor=BALANCER))
        is None
    )
    reach(world, "move", state, fenced=False)
    return world, source, target


@pytest.mark.parametrize("how", ["cancel", "abort-after"])
def test_reads_do_not_return_to_a_node_that_is_down(how: str) -> None:
    """The target, which has all acknowledged writes, would be ordered to delete them."""
    world, source, target = migrating(1, STATE.WRITE_BOTH_READ_NEW)
    world.crash(source)
    world.pass_s(60)
    if how == "cancel":
        assert code_of(world.apply(Cancel("move"))) == "past_point_of_no_return"
    else:
        off = SwitchBalancingOff("", abort_at_ms=world.now_ms + 1000)
        assert world.apply(off) is None
        world.balances = True
    world.pass_s(60)
    assert tablets(world)[0].reads == (target,)
    assert world.apply(Exclude((source,))) is None
    world.until(lambda: not world.image.topology.transitions, "the end of the migration")
    world.pass_s(30)
    assert tablets(world)[0].reads == (target,)
    assert not world.orders(target, OrderKind.CLEANUP)


def ring_of(rf: int) -> World:
    world = empty_cluster()
    world.add("a1 b1 c1 d1 e1", rack="r")
    world.run()
    assert world.apply(CreateKeyspace("music", {"dc1": rf})) is None
    return world


def join(rf: int) -> tuple[World, str]:
    world = ring_of(rf)
    world.add("f1", rack="r")
    return world, "join-f1"


def leave(rf: int) -> tuple[World, str]:
    world = ring_of(rf)
    assert world.apply(Leave("d1"), "leave") is None
    return world, "leave"


def move_tablet(rf: int) -> tuple[World, str]:
    world = with_table("a1 b1 c1 d1", 1, rf=rf)
    (row,) = tablets(world)
    source, target = row.reads[0], min({"a1", "b1", "c1", "d1"} - {*row.reads})
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    assert world.apply(MoveTablets((move,)), "move") is None
    return world, "move"


PAST = [
    (join, STATE.WRITE_BOTH_READ_NEW),
    (join, STATE.FINISHING),
    (leave, STATE.WRITE_BOTH_READ_NEW),
    (leave, STATE.LEFT_TOKEN_RING),
    (move_tablet, STATE.WRITE_BOTH_READ_NEW),
    (move_tablet, STATE.USE_NEW),
    (move_tablet, STATE.CLEANUP),
    (move_tablet, STATE.END_MIGRATION),
]
"""Operations whose reads have moved, in each state from there on."""


@pytest.mark.parametrize("rf", [1, 2, 3])
@pytest.mark.parametrize(("begin", "state"), PAST)
def test_old_copies_stay_while_the_new_replicas_may_lack_writes(
    begin: Callable[[int], tuple[World, str]], state: TransitionState, rf: int
) -> None:
    """A node that gained ranges dies: its exclusion needs force if it has the only serving copy."""
    world, request_id = begin(rf)
    reach(world, request_id, state, fenced=False)
    dead = max(gaining_nodes(world.transition(request_id)))
    world.crash(dead)
    ordered = {name: len(world.orders(name, OrderKind.CLEANUP)) for name in world.nodes}
    turns_back = begin is move_tablet and state is STATE.WRITE_BOTH_READ_NEW
    needs_force = rf == 1 and not turns_back
    if needs_force and state is not STATE.END_MIGRATION:
        world.pass_s(15)
        *_, advice = told(world, request_id)
        assert f"start {dead}: " in advice and "stele exclude" not in advice
    assert world.apply(Exclude((dead,)), "exclude") is None
    world.until(lambda: status_of(world, "exclude") not in UNFINISHED, "the exclusion")
    if needs_force:
        assert status_of(world, "exclude") is RequestStatus.FAILED
        assert f"may have acknowledged writes that only {dead} has" in error_of(world, "exclude")
        assert not world.image.membership.excluded()
        assert world.apply(Exclude((dead,), force=True), "force") is None
        world.until(
            lambda: world.image.membership.excluded() != frozenset(), "the forced exclusion"
        )
    assert status_of(world, "force" if needs_force else "exclude") is RequestStatus.DONE
    world.until(lambda: not world.image.topology.transitions, "the end of the operation")
    world.pass_s(30)
    cleaned = {n for n in ordered if len(world.orders(n, OrderKind.CLEANUP)) > ordered[n]}
    if rf == 1 and not turns_back:
        assert not cleaned
        has_old_copies = begin is not leave and state is not STATE.END_MIGRATION
        assert bool(dirty(world)) == has_old_copies
    else:
        assert not dirty(world)
    world.balances = True
    assert world.apply(Remove(node_id=dead, force=needs_force), "remove") is None
    world.run()
    assert status_of(world, "remove") is RequestStatus.DONE
    assert not dirty(world), "no range depends on the dead node"


def test_drain_of_an_excluded_node_and_cleanups_do_not_deadlock() -> None:
    """With two replicas every range of an excluded node lacks a quorum until its tablets are moved."""
    world = with_table("a1 b1 c1 d1", 4, rf=2)
    world.crash("d1")
    world.pass_s(15)
    assert world.apply(Exclude(("d1",))) is None
    world.until(lambda: world.image.membership.excluded() == {"d1"}, "the exclusion")
    assert world.apply(Cleanup(), "cleanup") is None
    world.balances = True
    assert world.apply(Remove(node_id="d1"), "remove") is None
    world.run()
    assert status_of(world, "cleanup") is RequestStatus.DONE
    assert status_of(world, "remove") is RequestStatus.DONE
    assert not dirty(world)


@pytest.mark.parametrize("force", [True, False])
def test_drain_of_nodes_with_the_only_copies_does_not_wait_for_cleanups(force: bool) -> None:
    """Cleanups stop until the dead nodes are removed, so these nodes' tablets go to nodes with old
    rows.
    """
    world = with_table("a1 b1 c1 d1", 4, rf=2)
    dead = next(row.reads for row in tablets(world))
    for node_id in dead:
        world.crash(node_id)
    world.pass_s(15)
    assert world.apply(Exclude(dead, force=True)) is None
    world.until(lambda: world.image.membership.excluded() == {*dead}, "the exclusion")
    assert world.apply(Cleanup(), "cleanup") is None
    world.balances = True
    for node_id in dead:
        assert world.apply(Remove(node_id=node_id, force=force), node_id) is None
    if force:
        world.run()
        assert not dirty(world)
    else:
        world.pass_s(60)
    ended = RequestStatus.DONE if force else RequestStatus.CANCELLED
    assert {status_of(world, node_id) for node_id in dead} == {ended}


@pytest.mark.parametrize("racks", [("a", "c"), ("a", "c", "d")])
def test_racks_change_off_a_dead_node_does_not_wait_for_cleanups(racks: tuple[str, ...]) -> None:
    """The dead node cannot be removed while racks name its own, and it has the only copy of other
    ranges, so nodes clean up after its removal.
    """
    world = empty_cluster()
    world.add("a1 b1 c1 d1")
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": 1})) is None
    world.create_table({}, 4, racks={"dc1": ("a", "b")})
    world.crash("b1")
    world.pass_s(15)
    assert world.apply(Exclude(("b1",), force=True)) is None
    world.until(lambda: world.image.membership.excluded() == {"b1"}, "the exclusion")
    assert world.apply(Cleanup(), "cleanup") is None
    world.balances = True
    assert world.apply(KeyspaceRfChange("music", {}, racks={"dc1": racks}), "racks") is None
    world.until(lambda: status_of(world, "racks") is RequestStatus.DONE, "the new racks")
    assert world.apply(Remove(node_id="b1", force=True)) is None
    world.run()
    assert not dirty(world)


def dirty(world: World) -> set[str]:
    return {n for n, node in world.image.membership.normal().items() if node.cleanup_since}


@pytest.mark.parametrize(("rf", "advised"), [(1, False), (3, True)])
def test_rejection_advises_no_exclusion_that_could_lose_writes(rf: int, advised: bool) -> None:
    world = with_table("a1 b1 c1 d1", 1, rf=rf)
    (row,) = tablets(world)
    target = min({"a1", "b1", "c1", "d1"} - {*row.reads})
    dead = row.reads[0] if rf == 1 else target
    world.crash(dead)
    world.pass_s(10)
    move = TabletMove(table=TABLE, tablet=0, from_node=row.reads[0], to_node=target)
    assert world.apply(MoveTablets((move,)), "move") is None
    world.until(lambda: status_of(world, "move") is RequestStatus.FAILED, "the rejection")
    assert f"Dead nodes: {dead}. Start them" in error_of(world, "move")
    assert (f"`stele exclude {dead}`" in error_of(world, "move")) is advised


def test_move_to_an_excluded_node_is_rejected_without_a_wait() -> None:
    world = with_table("a1 b1 c1 d1", 1, rf=3)
    (row,) = tablets(world)
    (target,) = {"a1", "b1", "c1", "d1"} - {*row.reads}
    move = TabletMove(table=TABLE, tablet=0, from_node=row.reads[0], to_node=target)
    world.crash(target)
    world.pass_s(10)
    assert world.apply(MoveTablets((move,)), "move") is None
    assert world.apply(Exclude((target,)), "exclude") is None
    world.until(lambda: status_of(world, "exclude") is RequestStatus.DONE, "the exclusion", 10)
    world.until(lambda: status_of(world, "move") is RequestStatus.FAILED, "the rejection", 5)
    assert f"Dead nodes: {target}. Excluded nodes" in error_of(world, "move")


def test_exclusion_counts_the_old_replica_after_reads_have_moved() -> None:
    """The second exclusion would roll the migration back, and the third one prevents that."""
    world, source, target = migrating(3, STATE.WRITE_BOTH_READ_NEW)
    (row,) = tablets(world)
    other = min({*row.reads} - {target})
    for dead in (other, target, source):
        world.crash(dead)
    for dead in (other, target, source):
        assert world.apply(Exclude((dead,)), f"exclude-{dead}") is None
    world.pass_s(60)
    assert status_of(world, f"exclude-{source}") is RequestStatus.FAILED
    assert source in error_of(world, f"exclude-{source}")
