"""Versions and the fence of each range: requests are refused, promoted, or left unchanged (I3, I6)."""

import pytest
from immutables import Map
from msgspec.structs import replace

from stele.domain.commands import Cancel, DropKeyspace, Leave
from stele.domain.fencing import (
    StaleVersion,
    VersionTracker,
    check_token,
    newest_fenced,
    takes_part,
)
from stele.domain.image import Image
from stele.domain.model.membership import MembershipImage, Node
from stele.domain.names import NodeState, TransitionState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import newest_before
from tests.coordinator.stories import reach
from tests.coordinator.world import World, three_nodes

STATE = TransitionState


def library(image: Image) -> str:
    known = image.schema.serving("library")
    assert known is not None
    return known.data_id


def row_of(image: Image, token: int) -> RangeReplicas:
    placement = image.placement_of("library")
    assert placement is not None
    return placement.row_for(token)


def tokens_by_change(world: World) -> tuple[int, int]:
    """Return a token of a range whose replicas the open transition changes, and one of an unchanged range."""
    plan = world.image.topology.open()[0].plans["dc1:2"]
    changed = {row.end for row in plan.rows}
    placement = world.image.placement_of("library")
    assert placement is not None
    other = next(
        row.end
        for row in placement.rows
        if row.version < world.image.topology.open()[0].entered_version
    )
    return next(iter(changed)), other


@pytest.mark.parametrize(
    ("version", "before", "fence", "oldest"),
    [
        (7, 3, 7, 7),
        (7, 3, 9, 7),
        (7, 3, 6, 3),
        (7, 0, 6, 0),
        (0, 0, 1, 0),
        (28, 27, 27, 27),  # it changes again, and keeps its earlier fence
    ],
)
def test_newest_fenced_change_decides(version: int, before: int, fence: int, oldest: int) -> None:
    assert newest_fenced(version, before, fence) == oldest


def test_each_change_of_a_row_keeps_the_previous_version() -> None:
    world = three_nodes()
    world.add("a2")
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=None)
    token, _ = tokens_by_change(world)
    seen: list[tuple[int, int]] = []
    while world.image.topology.transitions:
        row = row_of(world.image, token)
        if not seen or seen[-1] != (row.version, row.version_before):
            seen.append((row.version, row.version_before))
        world.tick()
    assert len(seen) == 3
    assert [before for _, before in seen[1:]] == [version for version, _ in seen[:-1]]


def test_request_two_changes_behind_is_refused_before_the_second_fence() -> None:
    world = three_nodes()
    world.add("a2")
    reach(world, "join-a2", STATE.JOIN_GROUP0, fenced=None)
    asleep = world.version
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_NEW, fenced=False)
    token, other = tokens_by_change(world)
    row = row_of(world.image, token)
    assert world.image.topology.fence_version < row.version
    found = check_token(world.image, library(world.image), token, asleep)
    assert found == StaleVersion(asleep, row.version_before, world.image.topology.fence_version)
    assert check_token(world.image, library(world.image), token, row.version_before) is None
    assert check_token(world.image, library(world.image), other, asleep) is None


def test_unfenced_change_refuses_no_request_of_the_previous_version() -> None:
    world = three_nodes()
    before = world.version
    world.add("a2")
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=False)
    token, _ = tokens_by_change(world)
    assert check_token(world.image, library(world.image), token, before) is None
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=True)
    assert check_token(world.image, library(world.image), token, before) is not None


def test_request_is_promoted_only_if_its_row_is_unchanged() -> None:
    world = three_nodes()
    drained: list[int] = []
    tracker = VersionTracker(lambda: drained.append(1))
    tracker.follow(world.image)
    began = world.version
    world.add("a2")
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=False)
    token, other = tokens_by_change(world)
    stays = tracker.hold(began, library(world.image), other)
    changes = tracker.hold(began, library(world.image), token)
    tracker.follow(world.image)
    assert (stays.version, changes.version) == (world.version, began)
    assert tracker.oldest_in_use(world.version) == began
    tracker.release(changes)
    assert drained and tracker.oldest_in_use(world.version) == world.version
    late = tracker.hold(began, library(world.image), other)
    assert late.version == world.version
    assert tracker.in_use() == {world.version: 2}


def test_rounds_on_other_ranges_never_fence_a_long_request() -> None:
    """Unrelated joins and leaves continue, and the request delays none of them."""
    world = three_nodes(rf=1)
    placement = world.image.placement_of("library")
    assert placement is not None
    tracker = VersionTracker()
    tracker.follow(world.image)
    world.history.on_image = tracker.follow
    began = world.version
    holds = {row.end: tracker.hold(began, library(world.image), row.end) for row in placement.rows}
    for index in range(2, 5):
        world.add(f"a{index}")
        world.run()
        assert world.apply(Leave(f"a{index}")) is None
        world.run()
    rounds = world.version - began
    survivors = [hold for hold in holds.values() if hold.version == world.version]
    assert rounds > 20
    assert survivors
    for hold in survivors:
        assert check_token(world.image, hold.data_id, hold.token, hold.version) is None
    for hold in holds.values():
        stale = check_token(world.image, hold.data_id, hold.token, hold.version)
        assert (stale is None) == (row_of(world.image, hold.token).version <= hold.version)


def test_range_moved_and_moved_back_refuses_old_requests() -> None:
    world = three_nodes()
    tracker = VersionTracker()
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.JOIN_GROUP0, fenced=None)
    tracker.follow(world.image)
    began = world.version
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD, fenced=True)
    token, _ = tokens_by_change(world)
    hold = tracker.hold(began, library(world.image), token)
    assert world.apply(Cancel("join-a2")) is None
    world.run()
    tracker.follow(world.image)
    assert hold.version == began
    assert check_token(world.image, hold.data_id, token, began) is not None


def test_dropped_keyspace_refuses_requests_of_older_versions() -> None:
    world = three_nodes()
    keyspace_id, began = library(world.image), world.version
    assert world.apply(DropKeyspace("library")) is None
    world.until(lambda: world.version > began, "the drop to open")
    assert check_token(world.image, keyspace_id, 5, began) is None
    world.until(world.fenced, "its fence")
    assert check_token(world.image, keyspace_id, 5, began) is not None
    world.run()
    assert check_token(world.image, keyspace_id, 5, world.version - 1) is not None


def test_merged_rows_keep_the_newest_change_before_the_last() -> None:
    """If the last change itself were kept, earlier requests would be refused before it is fenced."""
    rows = [RangeReplicas(0, 9, (), (), *versions) for versions in ((28, 20), (27, 11), (28, 9))]
    assert newest_before(rows, 28) == 27
    assert newest_before(rows[:1], 28) == 20
    assert newest_before([replace(rows[0], version_before=0)], 28) == 0


@pytest.mark.parametrize("state", [*NodeState])
def test_only_members_may_coordinate(state: NodeState) -> None:
    node = Node(node_id="n1", address="http://n1", dc="dc1", rack="r1", num_tokens=1, state=state)
    image = Image(membership=MembershipImage(Map({"n1": node})))
    member = state not in (NodeState.NONE, NodeState.LEFT, NodeState.REMOVING)
    assert takes_part(image, "n1") is member
    excluded = MembershipImage(Map({"n1": replace(node, excluded_since=1)}))
    assert not takes_part(Image(membership=excluded), "n1")
    assert not takes_part(image, "n2")
