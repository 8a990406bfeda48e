"""What commands come to: one test for each rule that refuses one, and the ways back."""

import pytest

from stele.domain.commands import (
    Advance,
    AdvanceFence,
    AnnounceNode,
    AnyCommand,
    Cancel,
    ClaimCoordinator,
    CreateKeyspace,
    DropKeyspace,
    EnableFeatures,
    FinishCleanup,
    FoundCluster,
    Join,
    Leave,
    RejectRequest,
    Rollback,
    SetSetting,
    StartRequest,
)
from stele.domain.names import CleanupStatus, NodeState, RequestStatus, TransitionState
from stele.domain.requests.ids import named
from tests.domain.history import Driver, History, join, three_nodes


def _joining(history: History, driver: Driver, state: TransitionState) -> str:
    """Bring the join of n4 into ``state``; gives its request id."""
    assert history.apply(join(4, "r1"), "join-n4") is None
    for _ in range(200):
        if history.image.topology.topology.transition_state is state:
            return "join-n4"
        driver.step()
    raise AssertionError(f"the join never reached {state}")


def _join_of(**changes: object) -> Join:
    given: dict[str, object] = {
        "node_id": "n9", "cluster": "demo", "address": "http://n9", "dc": "dc1", "rack": "r1",
    }  # fmt: skip
    return Join(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (_join_of(cluster="other"), "wrong_cluster"),
        (_join_of(partitioner="RandomPartitioner"), "wrong_partitioner"),
        (_join_of(node_id="no spaces"), "bad_name"),
        (_join_of(rack=""), "bad_name"),
        (_join_of(address=""), "bad_address"),
        (_join_of(node_id="n1"), "already_known"),
        (_join_of(address="http://n1"), "address_in_use"),
        (_join_of(num_tokens=0), "bad_num_tokens"),
        (_join_of(initial_tokens=(1, 1)), "bad_tokens"),
        (_join_of(initial_tokens=(2**63,)), "bad_tokens"),
        (AnnounceNode(node_id="n9", address="x"), "unknown_node"),
        (AnnounceNode(node_id="n1", address="http://n2"), "address_in_use"),
        (Leave("n9"), "unknown_node"),
        (Leave("n1"), "too_few_nodes"),
        (Cancel("none"), "unknown_request"),
        (Cancel(named("request-3")), "already_finished"),
        (CreateKeyspace("library", {"dc1": 3}), "keyspace_exists"),
        (CreateKeyspace("more", {"dc1": 4}), "too_few_nodes"),
        (CreateKeyspace("more", {}), "bad_replication"),
        (CreateKeyspace("more", {"dc1": 0}), "bad_replication"),
        (DropKeyspace("more"), "unknown_keyspace"),
        (EnableFeatures(("tablets",)), "feature_not_supported"),
        (SetSetting("x", "y" * 70_000), "setting_too_large"),
        (FoundCluster("other/2"), "cluster_exists"),
        (ClaimCoordinator("c2", 1), "stale_term"),
        (ClaimCoordinator("c2", 3), "stale_term"),
        (StartRequest(0, named("request-3")), "stale_term"),
        (StartRequest(1, named("request-3")), "not_pending"),
        (RejectRequest(1, "none", ""), "unknown_request"),
        (Advance(1, named("request-3"), 1), "overtaken"),
        (AdvanceFence(1, 1), "overtaken"),
        (Rollback(1, named("request-3"), ""), "not_in_transition"),
        (FinishCleanup(1, "n1", 1), "overtaken"),
    ],
)
def test_what_must_be_refused_is_refused_with_a_hint(command: AnyCommand, code: str) -> None:
    history, _ = three_nodes()
    before = history.image
    rejection = history.apply(command)
    assert rejection is not None
    assert rejection.code == code
    assert rejection.message
    assert rejection.hint
    assert history.image is before


def test_an_empty_log_takes_nothing_but_a_cluster() -> None:
    history = History()
    rejection = history.apply(join(1))
    assert rejection is not None
    assert rejection.code == "not_founded"


def test_a_node_that_left_cannot_come_back_under_its_id() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    history.apply(join(5, "r2"))
    driver.run()
    history.apply(Leave("n1"))
    driver.run()
    for command in (join(1), Leave("n1"), AnnounceNode(node_id="n1", address="x")):
        rejection = history.apply(command)
        assert rejection is not None
        assert rejection.code == "node_left"


def test_a_name_stands_for_one_data_directory() -> None:
    """Who comes with another disk lacks what the node had acknowledged: it is another replica."""
    history, _ = three_nodes()
    assert history.apply(_join_of(rack="r1", host_id="disk-9")) is None
    same = AnnounceNode(node_id="n9", address="http://n9:2", host_id="disk-9")
    assert history.apply(same) is None
    node = history.image.node("n9")
    assert node is not None and (node.address, node.host_id) == ("http://n9:2", "disk-9")
    for command in (
        _join_of(rack="r1", host_id="another"),
        _join_of(rack="r1"),
        AnnounceNode(node_id="n9", address="http://n9", host_id="another"),
        AnnounceNode(node_id="n9", address="http://n9"),
    ):
        rejection = history.apply(command)
        assert rejection is not None
        assert rejection.code == "host_id_mismatch"
        assert "Restore its data directory" in rejection.hint
    again = history.apply(_join_of(rack="r1", host_id="disk-9"))
    assert again is not None and again.code == "already_known"


def test_a_data_directory_is_never_another_nodes_also_when_its_node_has_left() -> None:
    history, _ = three_nodes()
    history.apply(_join_of(rack="r1", host_id="disk-9"), "join-n9")
    stolen = _join_of(node_id="n8", address="http://n8", host_id="disk-9")
    assert history.apply(Cancel("join-n9")) is None
    node = history.image.node("n9")
    assert node is not None and node.state is NodeState.LEFT
    rejection = history.apply(stolen)
    assert rejection is not None
    assert (rejection.code, rejection.facts) == ("host_id_used", {"node": "n9"})


def test_leaves_that_wait_count_as_gone() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    assert history.apply(Leave("n1")) is None
    rejection = history.apply(Leave("n2"))
    assert rejection is not None
    assert rejection.code == "too_few_nodes"


def test_no_placement_is_added_while_ranges_move() -> None:
    history, driver = three_nodes()
    _joining(history, driver, TransitionState.WRITE_BOTH_READ_OLD)
    rejection = history.apply(CreateKeyspace("more", {"dc1": 2}))
    assert rejection is not None
    assert rejection.code == "ranges_locked"
    assert history.apply(CreateKeyspace("same", {"dc1": 3})) is None


def test_a_step_waits_for_its_fence() -> None:
    history, driver = three_nodes()
    request_id = _joining(history, driver, TransitionState.JOIN_GROUP0)
    version = history.image.topology.topology.version
    rejection = history.apply(Advance(1, request_id, version))
    assert rejection is not None
    assert rejection.code == "not_fenced"


def test_cancelling_before_the_point_of_no_return_restores_the_placements() -> None:
    history, driver = three_nodes()
    before = history.image.ring
    request_id = _joining(history, driver, TransitionState.WRITE_BOTH_READ_OLD)
    assert history.image.ring != before
    assert history.apply(Cancel(request_id)) is None
    driver.run()
    assert history.image.ring == before
    request = history.image.requests.requests[request_id]
    assert request.status is RequestStatus.CANCELLED
    assert "cancelled by ada: why" in request.error
    assert history.image.membership.nodes["n4"].state is NodeState.LEFT
    assert history.image.topology.operation is None


def test_cancelling_after_the_point_of_no_return_is_refused() -> None:
    history, driver = three_nodes()
    request_id = _joining(history, driver, TransitionState.WRITE_BOTH_READ_NEW)
    rejection = history.apply(Cancel(request_id))
    assert rejection is not None
    assert rejection.code == "past_point_of_no_return"


def test_cancelling_a_pending_leave_forgets_it() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    assert history.apply(Leave("n1"), "leave-n1") is None
    assert history.apply(Cancel("leave-n1")) is None
    driver.run()
    assert history.image.requests.requests["leave-n1"].status is RequestStatus.CANCELLED
    assert history.image.membership.nodes["n1"].state is NodeState.NORMAL


def test_a_leave_that_fails_ends_where_it_began() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    before = history.image.ring
    driver.failing = {"n4"}
    history.apply(Leave("n1"), "leave-n1")
    driver.run()
    request = history.image.requests.requests["leave-n1"]
    assert request.status is RequestStatus.FAILED
    assert "disk full" in request.error
    assert history.image.ring == before
    assert history.image.membership.nodes["n1"].state is NodeState.NORMAL


def test_nodes_that_lost_ranges_clean_up_and_end_clean() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    marked = [
        node.node_id
        for image in history.images
        for node in image.membership.nodes.values()
        if node.cleanup is CleanupStatus.NEEDED
    ]
    assert set(marked) == {"n1"}
    assert history.image.membership.nodes["n1"].cleanup is CleanupStatus.CLEAN


def test_a_left_node_owns_no_tokens() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    history.apply(Leave("n1"))
    driver.run()
    assert history.image.membership.nodes["n1"].tokens == ()
    assert set(history.image.membership.ring_tokens().values()) == {"n2", "n3", "n4"}
