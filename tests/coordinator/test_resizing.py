"""Tablets are split and merged while other operations run, as in the tests of ScyllaDB's balancer.

Source: ScyllaDB, topology-over-raft.md, "Tablet resize".
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    AlterTable,
    Cancel,
    CreateKeyspace,
    CreateTable,
    DropTable,
    Exclude,
    Leave,
    MoveTablets,
    Remove,
    ResizeTable,
    SetSetting,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Truncate,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import Request
from stele.domain.model.schema import TableOptions
from stele.domain.names import RequestStatus, TransitionState, WaitKind
from stele.domain.tablets.maps import apart, held_by
from stele.runtime.answers.plans import PlanVerdict
from tests.coordinator.stories import reach, status_of
from tests.coordinator.test_dry_run import planned
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.test_why import told
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of
from tests.domain.load_of import loads_of

STATE = TransitionState
TARGET = 1000


def count(world: World, name: str = TABLE) -> int:
    return len(tablets(world, name))


def fills(world: World, mean: float, name: str = TABLE) -> None:
    """Set the mean size of the tablets."""
    data = world.image.schema.serving(name)
    assert data is not None
    total = int(mean * count(world, name))
    world.loads = lambda image: loads_of(image, lambda _, __: total // count(world, name))


def sized(nodes: str, tablets: int, rf: int = 2, rack: str = "r") -> World:
    world = with_table(nodes, tablets, rf, rack)
    assert world.apply(SetSetting("target_tablet_size_in_bytes", str(TARGET))) is None
    world.balances = True
    return world


def resized(world: World, wanted: int, seconds: float = 600) -> None:
    world.until(lambda: count(world) == wanted, f"{wanted} tablets", seconds)


def moves(world: World, *moved: tuple[int, str, str]) -> None:
    """Move tablets manually, one after the other."""
    for tablet, source, target in moved:
        move = TabletMove(table=TABLE, tablet=tablet, from_node=source, to_node=target)
        request_id = f"{tablet} from {source}"
        assert world.apply(MoveTablets((move,)), request_id) is None
        world.until(partial(_is_done, world, request_id), "a move")


def _is_done(world: World, request_id: str) -> bool:
    return status_of(world, request_id) is RequestStatus.DONE


def test_growing_table_is_split_and_shrinking_table_is_merged() -> None:
    """Scylla's test_load_balancing_resize_requests."""
    world = sized("a1 b1", 1)
    assert world.apply(AlterTable(TABLE, TableOptions(min_tablet_count=2))) is None
    resized(world, 2)
    fills(world, 1.5 * TARGET)
    world.pass_s(60)
    assert count(world) == 2
    fills(world, 2.2 * TARGET)
    resized(world, 4)
    world.pass_s(60)
    assert count(world) == 4, "they have 1,100 bytes each by now"
    assert world.apply(AlterTable(TABLE, reset=("min_tablet_count",))) is None
    fills(world, 0)
    resized(world, 1)


def test_split_keeps_replicas_and_versions_of_each_row() -> None:
    world = with_table("a1 b1 c1 d1", 4)
    moves(
        world,
        (
            2,
            tablets(world)[2].reads[0],
            min({*["a1", "b1", "c1", "d1"]} - {*tablets(world)[2].reads}),
        ),
    )
    before = tablets(world)
    assert before[2].version > before[0].version
    assert world.apply(ResizeTable(TABLE, 8), "resize") is None
    world.run()
    after = tablets(world)
    assert [(r.reads, r.version) for r in after] == [
        (r.reads, r.version) for r in before for _ in range(2)
    ]
    assert status_of(world, "resize") is RequestStatus.DONE


def test_split_waits_for_an_unprepared_replica_without_a_limit() -> None:
    world = with_table("a1 b1 c1", 4)
    world.nodes["c1"].prepares = False
    assert world.apply(ResizeTable(TABLE, 8), "resize") is None
    world.pass_s(3600)
    assert status_of(world, "resize") is RequestStatus.PENDING, "it waits without a limit"
    line, advice = told(world, "resize")
    assert "nodes to prepare their storage for tablet_resize" in line
    assert "the cause is c1: has not prepared its storage" in line
    assert advice == (
        "do: wait while c1 prepares its storage; its log shows errors, or withdraw the request:"
        " `stele cancel resize`"
    )
    world.nodes["c1"].prepares = True
    world.run()
    assert count(world) == 8


def test_merge_needs_no_prepared_storage() -> None:
    world = with_table("a1 b1 c1", 4, rf=3)
    for node in world.nodes.values():
        node.prepares = False
    assert world.apply(ResizeTable(TABLE, 2), "resize") is None
    world.run()
    assert count(world) == 2


def test_excluded_replica_does_not_block_a_split() -> None:
    world = with_table("a1 b1 c1", 4, rf=3)
    world.crash("c1")
    world.pass_s(20)
    assert world.apply(Exclude(("c1",))) is None
    assert world.apply(ResizeTable(TABLE, 8), "resize") is None
    world.run()
    assert count(world) == 8


def test_split_waits_for_migrations_and_later_ones_wait_for_the_split() -> None:
    world = with_table("a1 b1 c1 d1", 4)
    row, other = tablets(world)[0], tablets(world)[3]
    nodes = {*world.nodes}
    first = TabletMove(
        table=TABLE, tablet=0, from_node=row.reads[0], to_node=min(nodes - {*row.reads})
    )
    assert world.apply(MoveTablets((first,)), "first") is None
    reach(world, "first", STATE.STREAMING)
    assert world.apply(ResizeTable(TABLE, 8), "resize") is None
    second = TabletMove(
        table=TABLE, tablet=3, from_node=other.reads[0], to_node=min(nodes - {*other.reads})
    )
    assert world.apply(MoveTablets((second,)), "second") is None
    world.run()
    assert status_of(world, "first") is RequestStatus.DONE
    assert status_of(world, "resize") is RequestStatus.DONE
    late = world.image.request("second")
    assert late is not None and late.status is RequestStatus.FAILED
    assert "now has 8 tablets" in late.error, "its number means another tablet"
    assert tablets(world)[3].reads == tablets(world)[2].reads


def test_separated_siblings_block_only_their_merge() -> None:
    world = with_table("a1 b1 c1 d1", 4)
    nodes, row = {*world.nodes}, tablets(world)[1]
    if {*tablets(world)[0].reads} == {*row.reads}:
        moves(world, (1, row.reads[0], min(nodes - {*row.reads})))
    assert world.apply(ResizeTable(TABLE, 2), "merge") is None
    world.pass_s(30)
    assert status_of(world, "merge") is RequestStatus.PENDING
    row = tablets(world)[3]
    moves(world, (3, row.reads[0], min(nodes - {*row.reads})))
    world.add("e1")
    world.until(lambda: status_of(world, "join-e1") is RequestStatus.DONE, "the join")
    assert status_of(world, "merge") is RequestStatus.PENDING
    assert world.apply(Cancel("merge")) is None
    world.run()
    assert status_of(world, "merge") is RequestStatus.CANCELLED
    assert count(world) == 4


@pytest.mark.parametrize("racks", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_emptied_table_is_merged_to_one_tablet_from_any_placement(seed: int, racks: bool) -> None:
    """Scylla's test_load_balancing_merge_colocation_with_random_load."""
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(chance.randint(3, 7))]
    world = empty_cluster()
    for at, name in enumerate(names):
        world.add(name, rack=f"r{at % 3}" if racks else "r")
    world.run()
    world.create_table({"dc1": 3}, 16)
    for _ in range(12):
        tablet = chance.randrange(16)
        row = tablets(world)[tablet]
        free = sorted({*names} - {*row.reads})
        if free:
            move = TabletMove(
                table=TABLE,
                tablet=tablet,
                from_node=chance.choice(row.reads),
                to_node=chance.choice(free),
            )
            world.apply(MoveTablets((move,)))
            world.run()
    world.balances = True
    for wanted in (8, 4, 2, 1):
        assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=wanted))) is None
        resized(world, wanted)
    (row,) = tablets(world)
    assert len({*row.reads}) == 3
    if racks:
        assert len({world.image.membership.nodes[n].rack for n in row.reads}) == 3


def test_merge_continues_while_a_node_is_drained() -> None:
    """Scylla's ..._with_decomission."""
    world = with_table("a1 b1 c1 d1", 2, rf=3)
    world.balances = True
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=1))) is None
    assert world.apply(Leave("b1"), "leave") is None
    resized(world, 1)
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 300)
    assert {*tablets(world)[0].reads} == {"a1", "c1", "d1"}


def test_balancing_does_not_separate_siblings_during_a_merge() -> None:
    world = sized("a1 b1 c1", 8)
    assert world.apply(SwitchBalancingOff()) is None
    assert world.apply(ResizeTable(TABLE, 4), "merge") is None
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=4))) is None
    world.add("d1")
    world.until(lambda: status_of(world, "join-d1") is RequestStatus.DONE, "the join")
    assert world.apply(SwitchBalancingOn()) is None
    world.until(lambda: status_of(world, "merge") is RequestStatus.DONE, "the merge", 600)
    asked = [r for r in world.image.requests.requests.values() if r.to_node]
    assert all("become one" in r.reason or "share" in r.reason for r in asked)
    world.until(lambda: {*held_by(world.image).values()} == {2}, "evenness", 300)


def test_resize_that_is_no_longer_wanted_is_revoked() -> None:
    """The balancer revokes only its own pending resize, not one of a user."""
    world = sized("a1 b1 c1", 4)
    world.crash("c1")
    fills(world, 3 * TARGET)
    world.until(lambda: bool(world.image.requests.resizing()), "a split to be asked for", 60)
    (split,) = world.image.requests.resizing()
    fills(world, 1.2 * TARGET)
    world.pass_s(30)
    assert status_of(world, split) is RequestStatus.PENDING, "what has begun is not turned round"
    fills(world, 0.9 * TARGET)
    world.until(lambda: status_of(world, split) is RequestStatus.CANCELLED, "its end", 60)
    request = world.image.request(split)
    assert request is not None and "the target is 1,000" in request.error
    assert world.apply(ResizeTable(TABLE, 8), "mine") is None
    world.pass_s(60)
    assert status_of(world, "mine") is RequestStatus.PENDING


def test_table_is_dropped_or_truncated_while_its_merge_waits() -> None:
    world = with_table("a1 b1 c1 d1", 8)
    row, other = tablets(world)[:2]
    moves(world, (0, row.reads[0], min({*world.nodes} - {*row.reads, *other.reads})))
    (table,) = world.image.schema.with_tablets()
    assert len(apart(world.image.ring.placements[table.placement])) == 1
    assert world.apply(ResizeTable(TABLE, 4), "merge") is None
    assert world.apply(Truncate(TABLE), "truncate") is None
    world.until(lambda: status_of(world, "truncate") is RequestStatus.DONE, "the truncation", 60)
    assert world.apply(DropTable(TABLE), "drop") is None
    world.run()
    assert status_of(world, "drop") is RequestStatus.DONE
    assert status_of(world, "merge") in (RequestStatus.FAILED, RequestStatus.DONE)


def test_lost_replicas_cancel_a_merge_with_the_reason() -> None:
    world = with_table("a1 b1 c1 d1", 8, rf=1)
    world.crash("d1")
    world.pass_s(20)
    assert world.apply(Exclude(("d1",), force=True)) is None
    assert world.apply(ResizeTable(TABLE, 4), "merge") is None
    world.balances = True
    world.until(lambda: status_of(world, "merge") is RequestStatus.CANCELLED, "its end", 60)
    request = world.image.request("merge")
    assert request is not None and "d1 is dead for good" in request.error
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=4))) is None
    world.pass_s(60)
    assert not world.image.requests.resizing(), "nor is it asked for again and again"
    assert world.apply(Remove(node_id="d1", force=True), "remove") is None
    resized(world, 4)


@pytest.mark.parametrize("wanted", [0, -8, 8, 12, 2, 1, 32, 2**21, 2**70])
def test_invalid_tablet_count_is_refused(wanted: int) -> None:
    world = with_table("a1 b1 c1", 8)
    refused = world.apply(ResizeTable(TABLE, wanted))
    assert refused is not None and refused.code == "bad_tablet_count"
    assert "8 tablets" in refused.message


def test_table_has_one_resize_at_a_time() -> None:
    world = with_table("a1 b1 c1", 8)
    assert world.apply(ResizeTable(TABLE, 16), "first") is None
    refused = world.apply(ResizeTable(TABLE, 4))
    assert refused is not None and refused.code == "table_resizes"
    assert refused.details == {"request_id": "first"}
    assert code_of(world.apply(ResizeTable("music.none", 16))) == "unknown_table"
    assert world.apply(CreateKeyspace("plain", {"dc1": 1})) is None
    assert world.apply(CreateTable("plain.t")) is None
    assert code_of(world.apply(ResizeTable("plain.t", 16))) == "no_tablets"


def test_all_tables_together_respect_the_per_shard_goal() -> None:
    """Each table is reduced by the same factor, and none is split and merged in turn."""
    world = sized("a1 b1", 16)
    assert world.apply(SetSetting("tablets_per_shard_goal", "20")) is None
    for number in range(3):
        assert world.apply(CreateTable(f"music.t{number}")) is None
    names = [TABLE, *(f"music.t{number}" for number in range(3))]
    world.until(lambda: {count(world, name) for name in names} == {8}, "8 tablets of each", 600)
    world.pass_s(60)
    asked = world.image.requests.requests.values()
    assert sum(request.resizes for request in asked) == 4


def test_siblings_move_together_where_racks_allow_it() -> None:
    """The even tablet moves to the odd one's node if the opposite move is not allowed."""
    world = empty_cluster()
    world.add("a1", rack="r1")
    world.add("a2", rack="r1")
    world.run()
    world.create_table({"dc1": 2}, 2)
    world.add("b1", rack="r2")
    world.run()
    moves(world, (1, "a2", "b1"))
    world.balances = True
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=1))) is None
    resized(world, 1)
    assert {*tablets(world)[0].reads} == {"a1", "b1"}


def test_plan_of_a_split_assumes_that_live_nodes_have_prepared() -> None:
    world = with_table("a1 b1 c1", 8, rf=3)
    world.pass_s(1)
    assert planned(world, ResizeTable(TABLE, 16)).verdict is PlanVerdict.STARTS
    world.crash("c1")
    world.pass_s(20)
    found = planned(world, ResizeTable(TABLE, 16))
    assert found.verdict is PlanVerdict.WAITS
    assert found.wait is not None and found.wait.kind is WaitKind.PREPARED
    assert found.wait.cause == "c1"
    assert planned(world, ResizeTable(TABLE, 4)).verdict is PlanVerdict.STARTS


def resizes(world: World) -> list[Request]:
    return [r for r in world.image.requests.requests.values() if r.resizes]


def test_conflicting_options_of_a_table_do_not_merge_others() -> None:
    world = with_table("a1 b1", 16)
    world.balances = True
    options = TableOptions(max_tablet_count=2, expected_data_size_in_gb=100_000)
    assert world.apply(CreateTable("music.small", options)) is None
    world.pass_s(120)
    assert (count(world, "music.small"), count(world)) == (2, 16)


def test_racks_of_another_dc_do_not_count() -> None:
    world = empty_cluster()
    for name, dc in (("a1", "dc1"), ("a2", "dc1"), ("x1", "dc2"), ("x2", "dc2")):
        world.add(name, dc, "r1")
    world.run()
    world.create_table({"dc1": 2, "dc2": 2}, 2)
    world.add("y1", "dc2", "r2")
    world.run()
    moves(world, (1, "x2", "y1"))
    world.balances = True
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=1))) is None
    resized(world, 1)


def test_proposal_never_contains_a_split_and_moves_of_the_same_table() -> None:
    world = with_table("a1 b1 c1", 8)
    world.add("d1")
    world.run()
    assert world.apply(AlterTable(TABLE, TableOptions(min_tablet_count=16))) is None
    found = proposal(world.image)
    assert [resize.tablets for resize in found.resizes] == [16] and not found.moves
    (late,) = [
        c for c, _ in proposal(before_options(world)).commands() if isinstance(c, MoveTablets)
    ]
    assert world.apply(ResizeTable(TABLE, 16)) is None
    world.run()
    assert code_of(world.apply(late)) == "tablets_resized"


def before_options(world: World) -> Image:
    return next(image for image in reversed(world.images) if not _asks(image))


def _asks(image: Image) -> int:
    (table,) = image.schema.with_tablets()
    return table.options.min_tablet_count


def test_splits_that_wait_for_a_dead_node_block_no_other_table() -> None:
    world = empty_cluster()
    world.add("a1")
    world.add("x1", "dc2")
    world.run()
    for name, dc in (("music", "dc1"), ("other", "dc2")):
        keyspace = CreateKeyspace(name, {dc: 1}, tablets=True, initial_tablets=1)
        assert world.apply(keyspace) is None
    names = [f"music.t{number}" for number in range(10)]
    for name in (*names, "other.t"):
        assert world.apply(CreateTable(name)) is None
    world.crash("a1")
    world.pass_s(20)
    world.balances = True
    for name in names:
        assert world.apply(AlterTable(name, TableOptions(min_tablet_count=2))) is None
    world.pass_s(20)
    assert world.apply(AlterTable("other.t", TableOptions(min_tablet_count=2))) is None
    world.until(lambda: count(world, "other.t") == 2, "the other's split", 60)


def test_merge_is_revoked_while_a_node_is_down_and_requested_again() -> None:
    """Otherwise its tablets could not move, and new nodes would stay empty."""
    world = with_table("a1 b1 c1", 16)
    row = tablets(world)[1]
    spare = min({"a1", "b1", "c1"} - {*row.reads})
    if {*tablets(world)[0].reads} == {*row.reads}:
        moves(world, (1, row.reads[0], spare))
    world.add("d1")
    world.run()
    world.crash("c1")
    world.pass_s(20)
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=8))) is None
    world.balances = True
    world.pass_s(120)
    assert not world.image.requests.resizing() and held_by(world.image)["d1"] > 0
    world.nodes["c1"].alive = True
    resized(world, 8)


def test_merge_of_the_balancer_ends_with_the_switch_and_a_user_merge_waits() -> None:
    world = with_table("a1 b1 c1 d1", 8)
    row = tablets(world)[1]
    free = min({"a1", "b1", "c1", "d1"} - {*row.reads, *tablets(world)[0].reads} or {"d1"})
    moves(world, (1, row.reads[0], free))
    world.balances = True
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=4))) is None
    world.until(lambda: bool(world.image.requests.resizing()), "a merge to be asked for", 60)
    (own,) = world.image.requests.resizing()
    assert world.apply(SwitchBalancingOff()) is None
    world.until(lambda: status_of(world, own) is not RequestStatus.PENDING, "its end", 60)
    assert (status_of(world, own), count(world)) == (RequestStatus.CANCELLED, 8)
    assert world.apply(ResizeTable(TABLE, 4), "mine") is None
    world.pass_s(30)
    (wait,) = [w for w in world.brain.steps.waits if "mine" in w.request_ids]
    assert "balancing is off, so they stay apart" in wait.what
