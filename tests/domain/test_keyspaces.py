"""Keyspaces created and dropped during joins and leaves: ids, names, and placements of new replications."""

import pytest

from stele.domain.commands import Cancel, CreateKeyspace, DropKeyspace, Join, Leave, RejectRequest
from stele.domain.image import Image
from stele.domain.names import RequestStatus, TransitionState
from stele.domain.ring.ranges import RangeReplicas
from stele_simulator.ranges_in_use import sides
from tests.coordinator.stories import joining, reach, status_of
from tests.coordinator.world import SimNode, World, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState
JOIN_STATES = (
    STATE.JOIN_GROUP0,
    STATE.COMMIT_CDC_GENERATION,
    STATE.WRITE_BOTH_READ_OLD,
    STATE.WRITE_BOTH_READ_NEW,
    STATE.FINISHING,
    STATE.LEFT_TOKEN_RING,
)
LEAVE_STATES = (
    STATE.WRITE_BOTH_READ_OLD,
    STATE.WRITE_BOTH_READ_NEW,
    STATE.LEFT_TOKEN_RING,
    STATE.ROLLBACK_TO_NORMAL,
)


def rows(image: Image, placement: str) -> list[object]:
    return [(r.start, r.end, sides(r)) for r in image.ring.placements[placement].rows]


def join_with_tokens(world: World) -> None:
    """Join a2 with given tokens. Chosen tokens would depend on the keyspaces."""
    world.nodes["a2"] = SimNode("a2")
    asked = Join(
        node_id="a2",
        cluster="demo",
        address="http://a2",
        dc="dc1",
        rack="a",
        initial_tokens=(-(1 << 61), 1 << 61),
        host_id="host-a2",
    )
    assert world.apply(asked, "join-a2") is None


def begun(operation: str, state: TransitionState, *, early: bool, fenced: bool) -> World:
    """Return a world with a join or leave in a state. ``early`` creates another keyspace before it."""
    world = three_nodes()
    if early:
        assert world.apply(CreateKeyspace("narrow", {"dc1": 1}), "narrow") is None
    if operation == "join":
        join_with_tokens(world)
    else:
        assert world.apply(Leave("c1"), "join-a2") is None
    undone = state in (STATE.LEFT_TOKEN_RING, STATE.ROLLBACK_TO_NORMAL) and not (
        operation == "leave" and state is STATE.LEFT_TOKEN_RING
    )
    if undone:
        reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=False)
        assert world.apply(Cancel("join-a2")) is None
    reach(world, "join-a2", state, fenced=False)
    if fenced:
        world.nodes["b1"].applies = False
        world.until(world.fenced, "the fence of its own", 30)
        world.nodes["b1"].applies = True
    return world


@pytest.mark.parametrize(
    ("operation", "state"),
    [("join", state) for state in JOIN_STATES] + [("leave", state) for state in LEAVE_STATES],
)
def test_new_replication_equals_one_created_before_the_transition(
    operation: str, state: TransitionState
) -> None:
    early = begun(operation, state, early=True, fenced=False)
    late = begun(operation, state, early=False, fenced=False)
    assert late.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    assert rows(late.image, "dc1:1") == rows(early.image, "dc1:1")
    version = late.version
    assert all(r.version <= version for r in late.image.ring.placements["dc1:1"].rows)
    for world in (early, late):
        world.run()
    assert rows(late.image, "dc1:1") == rows(early.image, "dc1:1")
    assert late.image.membership.ring_tokens() == early.image.membership.ring_tokens()


def test_create_keyspace_needs_no_new_version() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    version, epoch = world.version, world.image.epoch
    assert world.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    assert (world.version, world.image.epoch) == (version, epoch + 1)
    assert world.image.schema.serving("narrow") is not None


def test_keyspaces_with_equal_replication_share_a_placement_until_dropped() -> None:
    world = three_nodes()
    assert world.apply(CreateKeyspace("twin", {"dc1": 2})) is None
    assert world.apply(DropKeyspace("library")) is None
    world.run()
    assert [*world.image.ring.placements] == ["dc1:2"]
    assert world.image.schema.named("library") is None
    assert world.apply(DropKeyspace("twin")) is None
    world.run()
    assert not world.image.ring.placements and not world.image.schema.by_id


def test_two_drops_in_one_round_remove_the_shared_placement() -> None:
    world = three_nodes()
    assert world.apply(CreateKeyspace("twin", {"dc1": 2})) is None
    for name in ("library", "twin"):
        assert world.apply(DropKeyspace(name), f"drop-{name}") is None
    world.run()
    ends = [world.image.requests.requests[f"drop-{n}"].finished_epoch for n in ("library", "twin")]
    assert ends[0] == ends[1]
    assert not world.image.ring.placements


def test_reused_name_is_another_keyspace() -> None:
    world = three_nodes()
    first = world.image.schema.named("library")
    assert world.apply(DropKeyspace("library"), "drop") is None
    early = world.apply(CreateKeyspace("library", {"dc1": 2}), "too early")
    assert early is not None and early.code == "keyspace_being_dropped"
    world.until(lambda: status_of(world, "drop") is RequestStatus.RUNNING, "the drop to open")
    early = world.apply(CreateKeyspace("library", {"dc1": 2}), "still too early")
    assert early is not None and early.code == "keyspace_being_dropped"
    assert world.image.schema.serving("library") is None
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": 2})) is None
    second = world.image.schema.named("library")
    assert first is not None and second is not None
    assert first.keyspace_id != second.keyspace_id
    assert second.keyspace_id not in {k for i in world.images[:-1] for k in i.schema.by_id}


def test_drop_is_refused_while_another_is_pending_or_running() -> None:
    world = three_nodes()
    assert world.apply(DropKeyspace("library"), "drop") is None
    for wanted in (RequestStatus.PENDING, RequestStatus.RUNNING):
        world.until(lambda wanted=wanted: status_of(world, "drop") is wanted, wanted)  # type: ignore[misc]
        again = world.apply(DropKeyspace("library"))
        assert again is not None and again.code == "keyspace_being_dropped"
        assert again.details == {"request_id": "drop"}
    world.run()
    assert code_of(world.apply(DropKeyspace("library"))) == "unknown_keyspace"


@pytest.mark.parametrize("by", ["cancel", "coordinator"])
def test_drop_that_ends_while_pending_keeps_the_keyspace(by: str) -> None:
    world = three_nodes()
    before = world.image.schema
    assert world.apply(DropKeyspace("library"), "drop") is None
    command = Cancel("drop") if by == "cancel" else RejectRequest(1, "drop", "no room")
    assert world.apply(command) is None
    assert world.image.schema == before
    ended = RequestStatus.CANCELLED if by == "cancel" else RequestStatus.FAILED
    assert status_of(world, "drop") is ended
    assert world.apply(DropKeyspace("library"), "drop again") is None
    world.run()
    assert world.image.schema.named("library") is None


@pytest.mark.parametrize("state", JOIN_STATES[:-1])
def test_keyspace_is_dropped_during_a_join_in_any_state(state: TransitionState) -> None:
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].mute = state is STATE.WRITE_BOTH_READ_OLD
    reach(world, "join-a2", state, fenced=None)
    assert world.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    assert world.apply(DropKeyspace("library"), "drop") is None
    world.until(lambda: status_of(world, "drop") is RequestStatus.DONE, "the drop")
    assert "dc1:2" not in world.image.ring.placements
    assert all("dc1:2" not in t.plans for t in world.image.topology.open())
    world.nodes["a2"].mute = False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE
    assert "a2" in {n for row in world.image.ring.placements["dc1:1"].rows for n in row.reads}


def test_every_member_cleans_up_after_a_drop_including_a_joining_node() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(DropKeyspace("library"), "drop") is None
    world.until(lambda: status_of(world, "drop") is RequestStatus.DONE, "the drop")
    since = world.image.requests.requests["drop"].finished_epoch
    assert world.image.membership.nodes["a2"].cleanup_since == since
    world.nodes["a2"].mute = False
    world.run()
    assert world.orders("a2")[-1].session != world.nodes["a2"].orders[-1].session
    assert world.nodes["a2"].orders[-1].session == f"cleanup-a2-{since}"


def test_keyspace_that_needs_more_nodes_than_remain_is_refused() -> None:
    world = three_nodes()
    world.apply(Leave("c1"), "leave-c1")
    assert code_of(world.apply(CreateKeyspace("wide", {"dc1": 3}))) == "too_few_nodes"


def test_rows_of_a_new_placement_have_version_zero() -> None:
    world = three_nodes()
    assert world.apply(CreateKeyspace("narrow", {"dc1": 1})) is None
    found: tuple[RangeReplicas, ...] = tuple(world.image.ring.placements["dc1:1"].rows)
    assert {(row.version, row.version_before) for row in found} == {(0, 0)}
