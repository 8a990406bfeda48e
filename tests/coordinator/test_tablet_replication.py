"""Keyspaces with tablets change their replication, tablet by tablet (Scylla's keyspace_rf_change)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveTablets,
    Remove,
    ResizeTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.names import RequestStatus, TransitionState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tablets.copies import recounting
from stele.domain.tablets.maps import held_by
from stele.runtime.answers.plans import PlanVerdict
from tests.coordinator.stories import status_of
from tests.coordinator.test_dry_run import planned
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of

KEYSPACE = "music"
CHANGE = "change"


def racked(nodes: str, rf: dict[str, int], count: int = 8) -> World:
    """Return nodes named ``dc/rack/name``, a table of ``count`` tablets, and a balancer."""
    world = empty_cluster()
    world.join_at(nodes)
    world.create_table(rf, count)
    world.balances = True
    return world


def asks(world: World, rf: dict[str, int], *, force: bool = False) -> None:
    assert world.apply(KeyspaceRfChange(KEYSPACE, rf, force), CHANGE) is None


def done(world: World, limit_s: float = 900) -> None:
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.DONE, "the change", limit_s)


def copies(image: Image, row: RangeReplicas) -> Counter[str]:
    return Counter(image.membership.nodes[name].dc for name in row.reads)


def replication(image: Image) -> dict[str, int]:
    keyspace = image.schema.named(KEYSPACE)
    assert keyspace is not None
    return keyspace.replication


def seen(world: World, name: str = TABLE) -> list[Counter[str]]:
    """Return replicas of tablets by dc, at each epoch."""
    found = list[Counter[str]]()
    for image in world.images:
        data = image.schema.serving(name)
        if data is not None:
            rows = image.ring.placements[data.placement].rows
            found += [copies(image, row) for row in rows]
    return found


def streams_yet(image: Image, request_id: str) -> bool:
    """Return whether the request's data has not arrived, or it has not started."""
    transition = image.topology.transitions.get(request_id)
    return transition is None or transition.state in (
        TransitionState.ALLOW_WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.STREAMING,
    )


NINE = " ".join(f"dc1/r{number % 3}/n{number}" for number in range(9))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 2), (3, 1), (3, 5)])
def test_every_tablet_reaches_the_new_replication_factor(before: int, after: int) -> None:
    """Tablets never have fewer replicas than the lower factor; racks and nodes stay even."""
    world = racked(NINE, {"dc1": before}, 16)
    asks(world, {"dc1": after})
    while status_of(world, CHANGE) is not RequestStatus.DONE:
        assert replication(world.image) == {"dc1": before}, "it says so only once all have it"
        world.pass_s(5)
        assert world.now_s < 2000
    assert replication(world.image) == {"dc1": after}
    assert {min(before, after), max(before, after)} == {
        extreme(c["dc1"] for c in seen(world)) for extreme in (min, max)
    }
    nodes = world.image.membership.nodes
    for row in tablets(world):
        assert copies(world.image, row) == {"dc1": after}
        racks = Counter(nodes[name].rack for name in row.writes)
        assert max(racks.values()) - min(racks[f"r{n}"] for n in range(3)) <= 1
    world.until(world.at_rest, "rest", 600)
    held = held_by(world.image)
    assert max(held.values()) - min(held.values()) <= 1


def test_many_tablets_change_in_parallel_within_the_stream_limits() -> None:
    world = racked(NINE, {"dc1": 2}, 64)
    asks(world, {"dc1": 3})
    done(world)
    adding = [
        [
            request
            for request in image.requests.unfinished_by_id.values()
            if request.recounts and streams_yet(image, request.request_id)
        ]
        for image in world.images
    ]
    assert max(map(len, adding)) >= 4, "one after the other would take for ever"
    most = [max(Counter(r.to_node for r in each).values(), default=0) for each in adding]
    assert max(most) == 2


def test_move_to_another_dc_adds_replicas_before_it_deletes() -> None:
    nodes = "dc1/r1/a1 dc1/r2/a2 dc2/r1/b1 dc2/r2/b2"
    world = racked(nodes, {"dc1": 2})
    asks(world, {"dc1": 0, "dc2": 2})
    done(world)
    assert all(copies(world.image, row) == {"dc2": 2} for row in tablets(world))
    assert min(c.total() for c in seen(world)) == 2
    half = [c for c in seen(world) if c["dc1"] < 2]
    assert half and all(c["dc2"] == 2 for c in half), "it loses one once it has all that it gets"


def test_no_replica_is_deleted_while_a_new_one_is_missing() -> None:
    world = racked("dc1/r1/a1 dc1/r2/a2 dc2/r1/b1 dc2/r2/b2", {"dc1": 2})
    world.crash("b2")
    world.pass_s(20)
    asks(world, {"dc2": 2})
    world.pass_s(60)
    assert all(copies(world.image, row) == {"dc1": 2, "dc2": 1} for row in tablets(world))
    world.nodes["b2"].alive = True
    done(world)


def test_change_covers_all_tables_of_the_keyspace_and_no_others() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1", {"dc1": 1}, 4)
    other = CreateKeyspace("other", {"dc1": 1}, tablets=True, initial_tablets=4)
    assert world.apply(other) is None
    for name in ("music.more", "other.t"):
        assert world.apply(CreateTable(name)) is None
    asks(world, {"dc1": 2})
    assert world.apply(CreateTable("music.late")) is None
    done(world)
    for name in (TABLE, "music.more", "music.late"):
        assert {len(row.reads) for row in tablets(world, name)} == {2}
    assert {len(row.reads) for row in tablets(world, "other.t")} == {1}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_cancelled_change_restores_the_previous_replication(before: int, after: int) -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1 dc1/r/d1", {"dc1": before}, 32)
    asks(world, {"dc1": after})

    def changed() -> int:
        return sum(len(row.reads) != before for row in tablets(world))

    world.until(lambda: changed() > 6, "some to have it", 300)
    assert world.apply(Cancel(CHANGE)) is None
    assert status_of(world, CHANGE) is RequestStatus.RUNNING, "it is being undone"
    assert code_of(world.apply(Cancel(CHANGE))) == "already_cancelled"
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.CANCELLED, "its end", 600)
    assert changed() == 0
    assert replication(world.image) == {"dc1": before}
    request = world.image.request(CHANGE)
    assert request is not None and request.error == "Rolled back: cancelled by ada"
    world.until(world.at_rest, "rest", 600)
    assert changed() == 0


def test_pending_change_is_cancelled_at_once() -> None:
    world = racked("dc1/r/a1 dc1/r/b1", {"dc1": 1})
    world.balances = False
    asks(world, {"dc1": 2})
    assert world.apply(Cancel(CHANGE)) is None
    assert status_of(world, CHANGE) is RequestStatus.CANCELLED


def test_change_waits_for_a_down_member_and_reports_the_rest() -> None:
    world = racked("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1", {"dc1": 2}, 4)
    world.crash("c1")
    world.pass_s(20)
    asks(world, {"dc1": 3})
    world.pass_s(60)
    assert status_of(world, CHANGE) is RequestStatus.RUNNING
    waits = [w for w in world.brain.steps.waits if CHANGE in w.request_ids]
    assert waits[0].what == "2 of 4 tablets of music.songs to have dc1=3"
    world.nodes["c1"].alive = True
    done(world)


def test_change_waits_for_a_down_rack() -> None:
    """Otherwise its replica would stay in a rack that already has one."""
    world = racked("dc1/r1/a1 dc1/r1/a2 dc1/r2/b1 dc1/r3/c1", {"dc1": 2}, 4)
    world.crash("c1")
    world.pass_s(20)
    asks(world, {"dc1": 3})
    world.pass_s(60)
    racks = {name: node.rack for name, node in world.image.membership.nodes.items()}
    assert all(len({racks[n] for n in row.reads}) == len(row.reads) for row in tablets(world))
    world.nodes["c1"].alive = True
    done(world)
    assert all({racks[n] for n in row.reads} == {"r1", "r2", "r3"} for row in tablets(world))


def test_change_is_cancelled_with_too_few_members() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1 dc1/r/d1", {"dc1": 2}, 16)
    world.balances = False
    asks(world, {"dc1": 4})
    world.crash("d1")
    world.pass_s(20)
    assert world.apply(Exclude(("d1",))) is None
    world.pass_s(20)
    world.balances = True
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.CANCELLED, "its end", 600)
    request = world.image.request(CHANGE)
    assert request is not None
    assert "4 replicas in 'dc1' need as many nodes; 3 take tablets" in request.error
    assert {len(row.reads) for row in tablets(world)} == {2}


def test_data_on_dead_nodes_is_given_up_only_with_force() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1", {"dc1": 1}, 16)
    world.crash("c1")
    world.pass_s(20)
    assert world.apply(Exclude(("c1",), force=True)) is None
    world.pass_s(20)
    asks(world, {"dc1": 2})
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.CANCELLED, "its end", 600)
    request = world.image.request(CHANGE)
    assert request is not None and "only dead nodes have" in request.error
    forced = KeyspaceRfChange(KEYSPACE, {"dc1": 2}, force=True)
    assert world.apply(forced, "forced") is None
    assert world.apply(Remove(node_id="c1", force=True), "remove") is None
    world.until(lambda: status_of(world, "forced") is RequestStatus.DONE, "the change", 600)
    world.until(lambda: status_of(world, "remove") is RequestStatus.DONE, "the removal", 600)
    assert all({*row.reads} == {"a1", "b1"} for row in tablets(world))


def test_dead_replica_is_deleted_first() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1 dc1/r/d1", {"dc1": 3}, 16)
    world.crash("d1")
    world.pass_s(20)
    assert world.apply(Exclude(("d1",))) is None
    asks(world, {"dc1": 2})
    done(world)
    assert not any("d1" in row.reads for row in tablets(world))


def test_member_needed_by_a_change_cannot_leave() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1", {"dc1": 2})
    asks(world, {"dc1": 3})
    assert code_of(world.apply(Leave("c1"))) == "too_few_nodes"


def test_second_change_and_drop_are_refused_during_a_change() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1", {"dc1": 1})
    asks(world, {"dc1": 2})
    for command in (KeyspaceRfChange(KEYSPACE, {"dc1": 3}), DropKeyspace(KEYSPACE)):
        assert code_of(world.apply(command)) == "request_in_progress"
    done(world)
    assert code_of(world.apply(KeyspaceRfChange(KEYSPACE, {"dc1": 2}))) == "replication_unchanged"
    assert code_of(world.apply(KeyspaceRfChange(KEYSPACE, {"dc1": 4}))) == "too_few_nodes"


def test_change_continues_while_balancing_is_off() -> None:
    world = racked("dc1/r/a1 dc1/r/b1 dc1/r/c1", {"dc1": 2}, 4)
    assert world.apply(SwitchBalancingOff()) is None
    asks(world, {"dc1": 3})
    done(world)


def one_more(tablet: int, node: str, *, beyond: bool = False) -> MoveTablets:
    return MoveTablets(
        (TabletMove(table=TABLE, tablet=tablet, from_node="", to_node=node, beyond=beyond),)
    )


def one_fewer(tablet: int, node: str) -> MoveTablets:
    return MoveTablets((TabletMove(table=TABLE, tablet=tablet, from_node=node, to_node=""),))


def test_replica_is_added_and_deleted_manually() -> None:
    world = with_table("a1 b1 c1 d1", 4)
    row = tablets(world)[0]
    free = min({*world.nodes} - {*row.reads})
    for asked, code in (
        (one_more(0, free), "replicas_exceeded"),
        (one_more(0, row.reads[0], beyond=True), "other_replicas"),
        (one_more(9, free), "unknown_tablet"),
        (one_more(0, ""), "no_node"),
        (one_fewer(0, row.reads[0]), "too_few_replicas"),
        (one_fewer(0, free), "other_replicas"),
    ):
        assert code_of(world.apply(asked)) == code
    assert world.apply(one_more(0, free, beyond=True), "more") is None
    world.run()
    assert status_of(world, "more") is RequestStatus.DONE
    assert tablets(world)[0].reads == (*row.reads, free)
    assert world.apply(one_fewer(0, row.reads[0]), "fewer") is None
    world.run()
    assert {*tablets(world)[0].reads} == {row.reads[1], free}


def test_balancer_deletes_a_surplus_replica_unless_balancing_is_off() -> None:
    world = with_table("a1 b1 c1 d1", 4)
    world.balances = True
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    free = min({*world.nodes} - {*tablets(world)[0].reads})
    assert world.apply(one_more(0, free, beyond=True), "more") is None
    world.run()
    world.pass_s(60)
    assert len(tablets(world)[0].reads) == 3
    assert recounting(world.image, {TABLE}) == []
    assert len(recounting(world.image, set())) == 1
    assert world.apply(SwitchBalancingOn(TABLE)) is None
    world.until(lambda: len(tablets(world)[0].writes) == 2, "two replicas", 120)
    world.run()
    assert {len(row.reads) for row in tablets(world)} == {2}


@pytest.mark.parametrize("seed", range(4))
def test_racks_stay_even_when_nodes_leave_during_a_change(seed: int) -> None:
    """Nodes leave while there are four replicas in three racks. One replica is then deleted."""
    chance = random.Random(seed)
    world = racked(" ".join(f"dc1/r{n % 3}/n{n}" for n in range(12)), {"dc1": 3}, 16)
    for rf in (4, 3):
        assert world.apply(KeyspaceRfChange(KEYSPACE, {"dc1": rf})) is None
        world.pass_s(chance.randint(0, 8))
        leaving = chance.choice(sorted(world.image.membership.normal()))
        assert world.apply(Leave(leaving)) is None
        world.run(900)
    world.pass_s(60)
    world.run(900)
    nodes = world.image.membership.nodes
    assert all(len({nodes[n].rack for n in row.reads}) == 3 for row in tablets(world))


def test_failed_deletion_is_retried_with_growing_delays() -> None:
    """No unrelated node is avoided because of it."""
    world = racked("dc1/r/a dc1/r/b dc1/r/c dc1/r/d dc1/r/e", {"dc1": 3}, 16)
    world.nodes["b"].fails = 10_000
    asks(world, {"dc1": 2})
    world.pass_s(300)
    asked = sum(epoch.command == "tablet_migration" for epoch in world.epochs)
    began = len(world.epochs)
    assert world.failures.avoided(world.now_s) <= {"b"}
    world.pass_s(300)
    assert len(world.epochs) - began < 150, f"{asked} were asked for before"
    world.nodes["b"].fails = 0
    done(world, 1500)


def test_leave_waits_for_the_room_made_by_a_change() -> None:
    world = racked("dc1/r0/a dc1/r0/a2 dc1/r1/b dc1/r2/c", {"dc1": 3}, 16)
    asks(world, {"dc1": 2})
    world.pass_s(3)
    assert world.apply(Leave("b"), "leave") is None
    done(world)
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 900)


def test_missing_replica_is_added_while_balancing_is_off() -> None:
    """A change that was cancelled with a dead node ends halfway."""
    world = racked("dc1/r/a dc1/r/b dc1/r/c", {"dc1": 3}, 16)
    assert world.apply(SwitchBalancingOff()) is None
    asks(world, {"dc1": 2})
    world.pass_s(10)
    world.crash("a")
    world.pass_s(20)
    assert world.apply(Exclude(("a",))) is None
    assert world.apply(Cancel(CHANGE)) is None
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.CANCELLED, "its end", 300)
    assert world.replace("f", "a") is None
    world.run()
    world.until(lambda: {len(row.reads) for row in tablets(world)} == {3}, "three of each", 300)


def test_waiting_tablets_do_not_block_others() -> None:
    world = racked(NINE, {"dc1": 2}, 16_384)
    world.balances = False
    for node in ("n2", "n5", "n8"):
        world.crash(node)
    world.pass_s(20)
    asks(world, {"dc1": 3})
    world.pass_s(1)
    looks = [
        proposal(world.image, Conditions({"n2", "n5", "n8"}, now_ms=1000 * second)).moves
        for second in range(4)
    ]
    racks = {n: node.rack for n, node in world.image.membership.nodes.items()}
    assert {racks[m.move.to_node] for moves in looks for m in moves} == {"r0", "r1"}


def test_dc_without_room_does_not_block_another_dc() -> None:
    world = racked("dc1/r/a dc2/r/b dc3/r/c", {"dc1": 1})
    world.crash("b")
    world.pass_s(20)
    asks(world, {"dc1": 1, "dc2": 1, "dc3": 1})
    world.pass_s(60)
    assert all(copies(world.image, row) == {"dc1": 1, "dc3": 1} for row in tablets(world))
    world.nodes["b"].alive = True
    done(world)


def test_surplus_replica_does_not_imply_consent_to_data_loss() -> None:
    world = with_table("a1 b1 c1 d1", 4, rf=3)
    row = tablets(world)[0]
    free = min({*world.nodes} - {*row.reads})
    for dead in row.reads[1:]:
        world.crash(dead)
    world.pass_s(20)
    for dead in row.reads[1:]:
        assert world.apply(Exclude((dead,), force=True)) is None
        world.pass_s(5)
    assert world.apply(one_more(0, free, beyond=True), "more") is None
    world.pass_s(30)
    request = world.image.request("more")
    assert request is not None and request.status is RequestStatus.FAILED
    assert "may have acknowledged writes that only" in request.error


def test_surplus_replica_must_go_to_the_emptiest_rack() -> None:
    world = racked("dc1/r1/a1 dc1/r1/a2 dc1/r2/b1 dc1/r3/c1", {"dc1": 2}, 1)
    world.balances = False
    (row,) = tablets(world)
    nodes = world.image.membership.nodes
    used = {nodes[name].rack for name in row.reads}
    taken = min(n for n, node in nodes.items() if n not in row.reads and node.rack in used)
    assert code_of(world.apply(one_more(0, taken, beyond=True))) == "rack_is_full"
    free = min(n for n, node in nodes.items() if node.rack not in used)
    assert world.apply(one_more(0, free, beyond=True), "more") is None
    world.run()
    assert status_of(world, "more") is RequestStatus.DONE


def test_dry_run_starts_during_any_round() -> None:
    """The change needs no round, so it waits for none."""
    world = racked("dc1/r/a dc1/r/b dc1/r/c", {"dc1": 2}, 4)
    world.balances = False
    assert world.apply(ResizeTable(TABLE, 8), "split") is None
    world.until(lambda: not world.fenced(), "a round", 60)
    found = planned(world, KeyspaceRfChange(KEYSPACE, {"dc1": 3}))
    assert found.verdict is PlanVerdict.STARTS
    assert found.plan.foreseen[0].endswith("tablets are to be made, 0 to be deleted")
