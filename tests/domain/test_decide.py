"""Decisions of commands: one test for each rule that rejects one, and rollbacks."""

from typing import get_args

import msgspec
import pytest

from stele.domain.commands import (
    Advance,
    AdvanceFence,
    AnnounceNode,
    AnnounceService,
    AnyCommand,
    Cancel,
    ChooseMembers,
    ClaimCoordinator,
    CreateKeyspace,
    DropKeyspace,
    EnableFeatures,
    ExcludeDead,
    ExpireTableSnapshot,
    FinishCleanup,
    FinishEnabling,
    ForgetCdcGeneration,
    ForgetService,
    FoundCluster,
    Join,
    Leave,
    Move,
    PublishCdcGeneration,
    Quiesce,
    RejectRequest,
    Rollback,
    ServeRequest,
    SetSetting,
)
from stele.domain.model.requests import named
from stele.domain.model.settings import LOWEST_BARRIER_LEVEL
from stele.domain.model.topology import RelaxBarrier
from stele.domain.names import BarrierLevel, NodeState, RequestStatus, TransitionState
from stele.domain.topology.barriers import next_lower
from tests.coordinator.stories import error_of, reach, status_of
from tests.domain.epochs import code_of
from tests.domain.history import History, World, join, three_nodes

STATE = TransitionState
THIRD = named("request-3")
"""The join of n1, which is done."""


def _joining(state: TransitionState) -> tuple[History, World]:
    """Return a world in which the join of n4, ``join-n4``, has reached ``state`` but does no work yet."""
    history, world = three_nodes()
    assert history.apply(join(4, "r1"), "join-n4") is None
    world.tick()
    world.nodes["n4"].mute = state is STATE.WRITE_BOTH_READ_OLD
    reach(world, "join-n4", state, fenced=None)
    return history, world


def _join_of(**changes: object) -> Join:
    given: dict[str, object] = {
        "node_id": "n9", "cluster": "demo", "address": "http://n9", "dc": "dc1", "rack": "r1",
        "host_id": "host-n9",
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
        (_join_of(host_id=""), "host_id_missing"),
        (_join_of(node_id="n1", host_id="host-n1"), "already_known"),
        (_join_of(address="http://n1"), "address_in_use"),
        (_join_of(num_tokens=-1), "bad_num_tokens"),
        (_join_of(initial_tokens=(1, 1)), "bad_tokens"),
        (_join_of(initial_tokens=(2**63,)), "bad_tokens"),
        (_join_of(initial_tokens=tuple(range(2000))), "bad_num_tokens"),
        (AnnounceNode(node_id="n9", address="x"), "unknown_node"),
        (AnnounceNode(node_id="n1", address="http://n2", host_id="host-n2"), "host_id_mismatch"),
        (Leave("n9"), "unknown_node"),
        (Leave("n1"), "too_few_nodes"),
        (Cancel("none"), "unknown_request"),
        (Cancel(THIRD), "already_finished"),
        (CreateKeyspace("library", {"dc1": 3}), "keyspace_exists"),
        (CreateKeyspace("more", {"dc1": 4}), "too_few_nodes"),
        (CreateKeyspace("more", {}), "bad_replication"),
        (CreateKeyspace("more", {"dc1": 0}), "bad_replication"),
        (DropKeyspace("more"), "unknown_keyspace"),
        (EnableFeatures(("tablets",)), "feature_not_supported"),
        (AnnounceService(service_id="coordinator"), "bad_name"),
        (AnnounceService(service_id="coordinator/c 1"), "bad_name"),
        (ForgetService("coordinator/c-1"), "unknown_service"),
        (SetSetting("x", "y" * 70_000), "setting_too_large"),
        (FoundCluster("other/2"), "cluster_exists"),
        (ClaimCoordinator("c2", 1), "stale_term"),
        (ClaimCoordinator("c2", 3), "stale_term"),
        (RejectRequest(1, "none", ""), "unknown_request"),
        (RejectRequest(0, THIRD, ""), "stale_term"),
        (RejectRequest(1, THIRD, ""), "not_pending"),
        (Rollback(1, THIRD, ""), "overtaken"),
        (FinishEnabling(1, "none"), "unknown_request"),
        (FinishEnabling(0, THIRD), "stale_term"),
        (FinishEnabling(1, THIRD), "overtaken"),
        (FinishCleanup(1, "n9", "cleanup"), "unknown_node"),
        (FinishCleanup(1, "n1", ""), "overtaken"),
        (FinishCleanup(1, "n1", "cleanup-n1-1"), "overtaken"),
    ],
)
def test_refused_command_has_a_code_and_a_hint(command: AnyCommand, code: str) -> None:
    history, _ = three_nodes()
    before = history.image
    rejection = history.apply(command)
    assert rejection is not None
    assert rejection.code == code
    assert rejection.message
    assert rejection.hint
    assert history.image is before


def test_empty_log_accepts_only_the_founding() -> None:
    history = History()
    rejection = history.apply(join(1))
    assert rejection is not None
    assert rejection.code == "not_founded"


@pytest.mark.parametrize("log_id", ["no hex", "ab", "0" * 31 + "g", "0" * 64])
def test_invalid_log_id_is_refused(log_id: str) -> None:
    rejection = History().apply(FoundCluster("demo/1", log_id))
    assert rejection is not None
    assert rejection.code == "bad_log_id"


def test_left_node_cannot_return_under_its_id() -> None:
    history, world = three_nodes()
    history.apply(join(4, "r1"))
    history.apply(join(5, "r2"))
    world.run()
    history.apply(Leave("n1"))
    world.run()
    for command in (
        join(1),
        Leave("n1"),
        AnnounceNode(node_id="n1", address="http://x", host_id="host-n1"),
    ):
        rejection = history.apply(command)
        assert rejection is not None
        assert rejection.code == "node_left"


def test_node_id_belongs_to_one_data_directory() -> None:
    """A node with another disk lacks the earlier acknowledgements: it is another replica."""
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
    assert code_of(history.apply(_join_of(rack="r1", host_id="disk-9"))) == "already_known"


def test_hint_names_the_request_to_cancel_after_a_lost_directory() -> None:
    history, _ = three_nodes()
    history.apply(_join_of(rack="r1", host_id="disk-9"), "join-n9")
    refused = history.apply(_join_of(rack="r1", host_id="another"))
    assert refused is not None
    assert refused.code == "host_id_mismatch"
    assert "`stele cancel join-n9`" in refused.hint
    # The cancel is refused once reads have moved.
    assert "`stele exclude n9`" in refused.hint


def test_data_directory_of_a_left_node_cannot_be_used_by_another_node() -> None:
    history, _ = three_nodes()
    history.apply(_join_of(rack="r1", host_id="disk-9"), "join-n9")
    stolen = _join_of(node_id="n8", address="http://n8", host_id="disk-9")
    assert history.apply(Cancel("join-n9")) is None
    node = history.image.node("n9")
    assert node is not None and node.state is NodeState.LEFT
    rejection = history.apply(stolen)
    assert rejection is not None
    assert (rejection.code, rejection.details) == ("host_id_used", {"node": "n9"})


def test_pending_leaves_count_for_too_few_nodes() -> None:
    history, world = three_nodes()
    history.apply(join(4, "r1"))
    world.run()
    assert history.apply(Leave("n1")) is None
    rejection = history.apply(Leave("n2"))
    assert rejection is not None
    assert rejection.code == "too_few_nodes"


def test_tokens_of_a_pending_join_are_reserved() -> None:
    """Two owners of a token would fold to different rings in different processes."""
    history, world = three_nodes()
    assert history.apply(join(4, "r1")) is None
    world.run()
    token = history.image.membership.nodes["n4"].tokens[0]

    history, world = three_nodes()
    chosen = _join_of(rack="r2", initial_tokens=(token,))
    assert history.apply(join(4, "r1"), "join-n4") is None
    assert history.apply(chosen, "join-n9") is None
    world.run()
    nodes = history.image.membership.nodes
    assert status_of(world, "join-n4") is status_of(world, "join-n9") is RequestStatus.DONE
    assert nodes["n9"].tokens == (token,)
    assert token not in nodes["n4"].tokens and len(nodes["n4"].tokens) == 16


# The coordinator's commands: guarded, total, and limited to the objects that they name.


def test_advance_waits_for_the_fence() -> None:
    history, world = _joining(STATE.JOIN_GROUP0)
    transition = world.transition("join-n4")
    move = Move("join-n4", transition.state, transition.session)
    topology = history.image.topology
    assert not topology.settled()
    rejection = history.apply(Advance(term=1, version=topology.version, moves=(move,)))
    assert rejection is not None
    assert rejection.code == "not_fenced"


@pytest.mark.parametrize(
    "command",
    [
        Advance(term=1, version=1),
        AdvanceFence(1, 1),
        Rollback(1, "another", "why"),
        Advance(term=1, version=0, moves=(Move("join-n4", STATE.WRITE_BOTH_READ_OLD),)),
    ],
)
def test_commands_of_a_finished_round_are_overtaken(command: AnyCommand) -> None:
    history, _ = _joining(STATE.WRITE_BOTH_READ_OLD)
    rejection = history.apply(command)
    assert rejection is not None
    assert rejection.code == "overtaken"


VERSION = 0
"""In its place the version that the log has."""
OF_AN_OLD_TERM: tuple[AnyCommand, ...] = (
    Advance(term=0, version=VERSION, moves=(Move("join-n4", STATE.WRITE_BOTH_READ_OLD),)),
    AdvanceFence(0, VERSION),
    ChooseMembers(0, THIRD, (), 0),
    ExcludeDead(0, THIRD),
    ExpireTableSnapshot(0, "s1"),
    FinishCleanup(0, "n1", "cleanup"),
    FinishEnabling(0, THIRD),
    ForgetCdcGeneration(0, "g1"),
    PublishCdcGeneration(0, "g1"),
    RejectRequest(0, "join-n4", "why"),
    RelaxBarrier(0, VERSION, BarrierLevel.EACH_QUORUM),
    Rollback(0, "join-n4", "why"),
    ServeRequest(0, THIRD, RequestStatus.DONE),
)


def test_commands_of_an_old_term_are_refused() -> None:
    """This holds for any command, however well it fits the state."""
    with_term = {kind for kind in get_args(AnyCommand) if "term" in kind.__struct_fields__}
    assert {type(command) for command in OF_AN_OLD_TERM} == with_term - {ClaimCoordinator}
    history, _ = _joining(STATE.WRITE_BOTH_READ_OLD)
    before = history.image
    versions = {"version": before.topology.version}
    for each in OF_AN_OLD_TERM:
        has_version = "version" in each.__struct_fields__
        command = msgspec.structs.replace(each, **versions) if has_version else each
        rejection = history.apply(command)
        assert rejection is not None, command
        assert rejection.code == "stale_term", command
        assert history.image is before


def test_version_is_fenced_once() -> None:
    history, _ = _joining(STATE.WRITE_BOTH_READ_OLD)
    history._judge = None
    fence = AdvanceFence(1, history.image.topology.version)
    assert history.image.topology.settled() or history.apply(fence) is None
    before = history.image
    assert code_of(history.apply(fence)) == "overtaken"
    assert history.image is before


def test_barrier_is_relaxed_only_as_far_as_the_settings_permit() -> None:
    history, _ = _joining(STATE.WRITE_BOTH_READ_OLD)
    version = history.image.topology.version
    for level in BarrierLevel:
        assert code_of(history.apply(RelaxBarrier(1, version, level))) == "overtaken"
    assert history.apply(SetSetting(LOWEST_BARRIER_LEVEL.name, BarrierLevel.QUORUM)) is None
    one_less = next_lower(history.image)
    assert one_less is not None
    for level in {*BarrierLevel} - {one_less}:
        assert history.apply(RelaxBarrier(1, version, level)) is not None
    assert history.apply(RelaxBarrier(1, version, one_less)) is None


def test_what_needs_no_transition_is_neither_opened_nor_published() -> None:
    history, _ = three_nodes()
    version = history.image.topology.version
    assert history.image.topology.settled() or history.apply(AdvanceFence(1, version)) is None
    assert history.apply(Quiesce(), "quiesce") is None
    for command in (
        Advance(term=1, version=version, open=(("quiesce",),)),
        PublishCdcGeneration(1, ""),
    ):
        rejection = history.apply(command)
        assert rejection is not None
        assert rejection.code == "overtaken"


def test_rollback_blames_only_the_failed_join_of_a_group() -> None:
    history, _ = three_nodes()
    history._judge = None
    for index in (4, 5):
        assert history.apply(join(index, "r1"), f"join-n{index}") is None
    version = history.image.topology.version
    assert history.image.topology.settled() or history.apply(AdvanceFence(1, version)) is None
    group = ("join-n4", "join-n5")
    assert history.apply(Advance(term=1, version=version, open=(group,))) is None
    assert history.apply(Rollback(1, "join-n4", "it died", ("join-n5",))) is None
    assert history.image.topology.transitions["join-n4"].blamed == ("join-n5",)
    requests = history.image.requests.requests
    assert [requests[i].error for i in group] == ["", "Rolled back: it died"]


def test_second_rollback_is_overtaken() -> None:
    history, _ = _joining(STATE.WRITE_BOTH_READ_OLD)
    assert history.apply(Rollback(1, "join-n4", "for this")) is None
    before = history.image
    assert code_of(history.apply(Rollback(1, "join-n4", "for that"))) == "overtaken"
    assert history.image is before


def test_move_must_name_the_current_state_and_session() -> None:
    history, world = _joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(world.fenced, "the fence")
    version = history.image.topology.version
    for move in (
        Move("join-n4", STATE.JOIN_GROUP0),
        Move("join-n4", STATE.WRITE_BOTH_READ_OLD),
        Move("join-n4", STATE.WRITE_BOTH_READ_OLD, "of another time"),
        Move("join-n5", STATE.WRITE_BOTH_READ_OLD),
    ):
        rejection = history.apply(Advance(term=1, version=version, moves=(move,), open=((),)))
        assert rejection is not None and rejection.code == "overtaken"


def test_duplicates_in_a_round_are_applied_once() -> None:
    history, world = _joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(world.fenced, "the fence")
    world.pass_s(1)
    assert history.apply(join(5, "r5"), "join-n5") is None
    transition = world.transition("join-n4")
    move = Move("join-n4", transition.state, transition.session)
    twice = Advance(
        term=1,
        version=history.image.topology.version,
        moves=(move, move),
        open=(("join-n5", "join-n5", "unknown"), ("join-n5",)),
    )
    assert history.apply(twice) is None
    assert world.transition("join-n4").state is STATE.WRITE_BOTH_READ_NEW
    world.nodes["n4"].mute = False
    world.run()
    assert status_of(world, "join-n5") is RequestStatus.DONE


def test_rollback_blames_only_requests_of_its_own_transition() -> None:
    history, world = _joining(STATE.WRITE_BOTH_READ_OLD)
    before = history.image.requests.requests[THIRD]
    assert history.apply(Rollback(1, "join-n4", "for this", ("unknown", THIRD))) is None
    assert history.image.requests.requests[THIRD] == before
    assert world.transition("join-n4").blamed == ("join-n4",)


# Rollbacks.


# Joins of one transition.


def _two_joining() -> World:
    """Return a world in which n4 and n5 stream in one transition, and neither has answered."""
    history, world = three_nodes()
    history.apply(join(4, "r1"), "join-n4")
    history.apply(join(5, "r2"), "join-n5")
    world.tick()
    world.nodes["n4"].mute = world.nodes["n5"].mute = True
    reach(world, "join-n4", STATE.WRITE_BOTH_READ_OLD)
    assert world.transition("join-n4") == world.transition("join-n5")
    return world


def test_join_continues_after_the_cancel_of_another_join_of_its_group() -> None:
    world = _two_joining()
    assert world.apply(Cancel("join-n4")) is None
    world.nodes["n5"].mute = False
    world.run()
    assert status_of(world, "join-n4") is RequestStatus.CANCELLED
    assert status_of(world, "join-n5") is RequestStatus.DONE
    assert error_of(world, "join-n5") == ""
    assert world.state("n5") is NodeState.NORMAL


def test_returned_join_cleans_up_the_received_ranges() -> None:
    world = _two_joining()
    assert world.apply(Cancel("join-n4")) is None
    world.nodes["n5"].mute = False
    since = len(world.images)
    world.run()
    marked = [i.membership.nodes["n5"].cleanup_since for i in world.images[since:]]
    assert any(marked) and not marked[-1]


def test_both_joins_of_a_transition_can_be_cancelled() -> None:
    """The second cancel arrives during the rollback: a cancel never has to be sent again."""
    world = _two_joining()
    assert world.apply(Cancel("join-n4")) is None
    assert world.apply(Cancel("join-n5")) is None
    assert code_of(world.apply(Cancel("join-n5"), "again")) == "past_point_of_no_return"
    world.run()
    for request_id in ("join-n4", "join-n5"):
        assert status_of(world, request_id) is RequestStatus.CANCELLED
    assert world.state("n5") is NodeState.LEFT
