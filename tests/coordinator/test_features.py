"""Features are enabled after a barrier: no member may return with a build that lacks them."""

import pytest

from stele.domain import decide
from stele.domain.commands import (
    AnnounceNode,
    AnnounceService,
    Cancel,
    EnableFeatures,
    Exclude,
    Rejection,
)
from stele.domain.names import RequestStatus
from tests.coordinator.stories import error_of, status_of, undoing
from tests.coordinator.waits import blockers
from tests.coordinator.world import World, three_nodes

FEATURE = "tablets"
ASKED = "enable"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return three nodes that support the feature, and a deciding build that knows it."""
    monkeypatch.setattr(decide, "KNOWN_FEATURES", frozenset({FEATURE}))
    world = three_nodes(2)
    for name in world.nodes:
        assert declare(world, name, FEATURE) is None
    return world


def declare(world: World, name: str, *features: str) -> Rejection | None:
    node = world.image.membership.nodes[name]
    said = AnnounceNode(
        node_id=name, address=node.address, supported_features=features, host_id=node.host_id
    )
    return world.apply(said)


def enable(world: World) -> None:
    assert world.apply(EnableFeatures((FEATURE,)), ASKED) is None
    assert status_of(world, ASKED) is RequestStatus.PENDING


def over(world: World) -> RequestStatus:
    world.until(lambda: status_of(world, ASKED) is not RequestStatus.PENDING, "the end")
    return status_of(world, ASKED)


def test_feature_is_enabled_once_all_nodes_have_acknowledged_the_request(world: World) -> None:
    late = world.nodes["b1"]
    late.applies = False
    enable(world)
    world.pass_s(60)
    assert status_of(world, ASKED) is RequestStatus.PENDING
    (blocker,) = blockers(world.brain.steps)
    assert blocker.node_id == "b1"
    assert "has applied epoch" in blocker.why
    late.applies = True
    assert over(world) is RequestStatus.DONE
    assert world.image.features.enabled == (FEATURE,)


def test_wait_for_a_down_member_names_it(world: World) -> None:
    world.nodes["b1"].alive = False
    enable(world)
    world.pass_s(100)
    assert status_of(world, ASKED) is RequestStatus.PENDING
    assert {blocker.node_id for blocker in blockers(world.brain.steps)} == {"b1"}
    undoing(world)
    assert over(world) is RequestStatus.FAILED
    assert "b1" in error_of(world, ASKED)
    assert "`stele exclude b1`" in error_of(world, ASKED)
    assert world.image.features.enabled == ()


def test_member_that_returns_with_an_older_build_prevents_the_feature(world: World) -> None:
    """The log assumes that it supports the feature until it announces otherwise."""
    back = world.nodes["b1"]
    back.alive = False
    enable(world)
    world.pass_s(5)
    assert declare(world, "b1") is None
    back.alive = True
    assert over(world) is RequestStatus.FAILED
    assert "not supported by b1" in error_of(world, ASKED)
    assert world.image.features.enabled == ()


def test_excluded_node_does_not_block_a_feature(world: World) -> None:
    world.add("b2")
    world.run()
    assert declare(world, "b2", FEATURE) is None
    world.nodes["b1"].alive = False
    enable(world)
    assert world.apply(Exclude(("b1",))) is None
    assert over(world) is RequestStatus.DONE


def test_service_started_with_an_older_build_prevents_the_feature(world: World) -> None:
    world.nodes["b1"].applies = False
    enable(world)
    assert world.apply(AnnounceService(service_id="coordinator/old")) is None
    world.nodes["b1"].applies = True
    assert over(world) is RequestStatus.FAILED
    assert "not supported by coordinator/old" in error_of(world, ASKED)


def test_pending_feature_request_can_be_cancelled(world: World) -> None:
    world.nodes["b1"].applies = False
    enable(world)
    world.pass_s(5)
    assert world.apply(Cancel(ASKED)) is None
    world.nodes["b1"].applies = True
    world.run()
    assert status_of(world, ASKED) is RequestStatus.CANCELLED
    assert world.image.features.enabled == ()


def test_request_fails_if_the_deciding_build_does_not_know_the_feature(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "KNOWN_FEATURES", frozenset())
    enable(world)
    assert over(world) is RequestStatus.FAILED
    assert "does not know tablets" in error_of(world, ASKED)


def test_enabled_feature_is_done_at_once(world: World) -> None:
    enable(world)
    over(world)
    assert world.apply(EnableFeatures((FEATURE,)), "again") is None
    assert status_of(world, "again") is RequestStatus.DONE
