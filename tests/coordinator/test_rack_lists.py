"""Keyspaces that name the racks of a dc: each of these racks has one replica of each tablet, others none."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stele.domain.balancer.proposals import proposal, tablet_verdicts
from stele.domain.base import Rejection
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    CreateTable,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveTablets,
    Remove,
    ResizeTable,
    SetSetting,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.schema import Keyspace
from stele.domain.names import RequestStatus
from stele.domain.planner.planned import Rule
from stele.domain.ring.ranges import RangeReplicas
from tests.coordinator.stories import error_of, status_of
from tests.coordinator.test_dry_run import planned
from tests.coordinator.test_tablet_replication import CHANGE, KEYSPACE, done
from tests.coordinator.test_tablets import TABLE, tablets
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of

Racks = dict[str, tuple[str, ...]]
SIX = "dc1/r1/a1 dc1/r1/a2 dc1/r2/b1 dc1/r2/b2 dc1/r3/c1 dc1/r3/c2"
TWO_DCS = f"{SIX} dc2/r4/d1 dc2/r5/e1"


def cluster(nodes: str) -> World:
    world = empty_cluster()
    world.join_at(nodes)
    return world


def creates(
    rf: dict[str, int], racks: Racks, count: int = 8, name: str = KEYSPACE
) -> CreateKeyspace:
    return CreateKeyspace(name, rf, tablets=True, initial_tablets=count, racks=racks)


def listed(nodes: str, racks: Racks, rf: dict[str, int] | None = None, count: int = 8) -> World:
    """Return a world with a table of ``count`` tablets and a balancer."""
    world = cluster(nodes)
    assert world.apply(creates(rf or {}, racks, count)) is None
    assert world.apply(CreateTable(TABLE)) is None
    world.balances = True
    return world


def asks(world: World, racks: Racks, rf: dict[str, int] | None = None) -> None:
    assert world.apply(KeyspaceRfChange(KEYSPACE, rf or {}, racks=racks), CHANGE) is None


def keyspace(image: Image) -> Keyspace:
    found = image.schema.named(KEYSPACE)
    assert found is not None
    return found


def racks_of(image: Image, row: RangeReplicas, dc: str = "dc1") -> tuple[str, ...]:
    nodes = [image.membership.nodes[name] for name in row.reads]
    return tuple(sorted(node.rack for node in nodes if node.dc == dc))


def all_racks(world: World, dc: str = "dc1") -> set[tuple[str, ...]]:
    return {racks_of(world.image, row, dc) for row in tablets(world)}


def in_service(world: World) -> list[tuple[Image, RangeReplicas]]:
    """Return each tablet at each epoch."""
    found = list[tuple[Image, RangeReplicas]]()
    for image in world.images:
        data = image.schema.serving(TABLE)
        if data is not None:
            found += [(image, row) for row in image.ring.placements[data.placement].rows]
    return found


def test_new_table_has_one_replica_in_each_rack_spread_over_its_nodes() -> None:
    world = listed(f"{SIX} dc1/r1/a3", {"dc1": ("r3", "r1")}, count=16)
    assert keyspace(world.image).wanted == ({"dc1": 2}, {"dc1": ("r1", "r3")})
    assert all_racks(world) == {("r1", "r3")}
    held = Counter(name for row in tablets(world) for name in row.reads)
    assert (held["c1"], held["c2"]) == (8, 8)
    assert {held[name] for name in ("a1", "a2", "a3")} == {5, 6}
    world.until(world.at_rest, "rest", 300)
    assert Counter(name for row in tablets(world) for name in row.reads) == held
    pairs = {row.reads for row in tablets(world)}
    assert len(pairs) == 6, "those of a node meet all of the other rack"


def test_number_of_tablets_follows_the_shards_of_the_racks() -> None:
    world = cluster("dc1/r1/a dc1/r2/b dc1/r3/c")
    assert world.apply(CreateKeyspace("one", {}, tablets=True, racks={"dc1": ("r1",)})) is None
    assert world.apply(CreateTable("one.t")) is None
    assert len(tablets(world, "one.t")) == 16, "10 for its one shard, rounded up"
    assert world.apply(CreateKeyspace("any", {"dc1": 1}, tablets=True)) is None
    assert world.apply(CreateTable("any.t")) is None
    assert len(tablets(world, "any.t")) == 32, "10 for each of three"


@pytest.mark.parametrize(
    ("rf", "racks", "code"),
    [
        ({}, {"dc1": ("r1", "r1")}, "rack_named_twice"),
        ({"dc1": 3}, {"dc1": ("r1", "r2")}, "bad_replication"),
        ({}, {"dc1": ("r1", "r9")}, "no_room_in_rack"),
        ({}, {"dc9": ("r1",)}, "no_room_in_rack"),
        ({}, {"dc1": ("r4",)}, "no_room_in_rack"),
        ({}, {"dc1": ()}, "bad_replication"),
        ({"dc1": 2}, {"dc1": ("r1", "r2")}, ""),
        ({"dc1": 0, "dc2": 1}, {"dc1": ("r1", "r2")}, "bad_replication"),
        ({"dc2": 1}, {"dc1": ("r1", "r2")}, ""),
    ],
)
def test_racks_must_be_distinct_and_exist(rf: dict[str, int], racks: Racks, code: str) -> None:
    world = cluster(TWO_DCS)
    assert code_of(world.apply(creates(rf, racks))) == code
    assert world.apply(creates({"dc1": 1}, {}, name="other")) is None
    assert code_of(world.apply(KeyspaceRfChange("other", rf, racks=racks))) == code


def test_racks_need_tablets() -> None:
    world = cluster(SIX)
    plain = CreateKeyspace("plain", {}, racks={"dc1": ("r1", "r2")})
    assert code_of(world.apply(plain)) == "racks_need_tablets"
    assert world.apply(CreateKeyspace("plain", {"dc1": 2})) is None
    change = KeyspaceRfChange("plain", {}, racks={"dc1": ("r1", "r2")})
    assert code_of(world.apply(change)) == "racks_need_tablets"


def test_rack_list_can_be_required_by_a_setting() -> None:
    world = cluster(TWO_DCS)
    assert world.apply(SetSetting("enforce_rack_list", "on")) is None
    assert code_of(world.apply(creates({"dc1": 2}, {}))) == "rack_list_required"
    half = creates({"dc2": 1}, {"dc1": ("r1", "r2")})
    assert code_of(world.apply(half)) == "rack_list_required"
    assert world.apply(creates({}, {"dc1": ("r1", "r2")})) is None
    assert world.apply(CreateKeyspace("plain", {"dc1": 2})) is None
    change = KeyspaceRfChange(KEYSPACE, {"dc1": 2})
    assert code_of(world.apply(change)) == "rack_list_required"


def test_rack_whose_last_node_leaves_is_not_accepted() -> None:
    world = cluster("dc1/r1/a dc1/r2/b dc1/r3/c")
    assert world.apply(Leave("c")) is None
    assert code_of(world.apply(creates({}, {"dc1": ("r1", "r3")}))) == "no_room_in_rack"


def test_change_from_a_number_to_a_rack_list_moves_only_what_it_must() -> None:
    """Tablets never have fewer or more replicas, and well-placed replicas do not move."""
    world = listed(SIX, {}, {"dc1": 2}, 32)
    beside = sum(len({*racks_of(world.image, row)} - {"r1", "r3"}) for row in tablets(world))
    assert beside > 10
    asks(world, {"dc1": ("r1", "r3")})
    before = keyspace(world.image)
    while status_of(world, CHANGE) is not RequestStatus.DONE:
        assert keyspace(world.image) == before, "it says so only once all are there"
        world.pass_s(3)
        assert world.now_s < 2000
    assert keyspace(world.image).wanted == ({"dc1": 2}, {"dc1": ("r1", "r3")})
    assert all_racks(world) == {("r1", "r3")}
    assert {len(row.reads) for _, row in in_service(world)} == {2}
    request = world.image.request(CHANGE)
    assert request is not None and request.replicas_to_move == beside
    moves = [
        r
        for image in world.images
        for r in image.requests.unfinished_by_id.values()
        if r.moves_replica
    ]
    assert len({move.request_id for move in moves}) == beside
    at_once = [
        sum(r.moves_replica for r in i.requests.unfinished_by_id.values()) for i in world.images
    ]
    assert max(at_once) >= 4
    world.until(world.at_rest, "rest", 600)
    held = Counter(name for row in tablets(world) for name in row.reads)
    assert {held[name] for name in ("a1", "a2", "c1", "c2")} == {16}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (({}, {"dc1": ("r1",)}), ({}, {"dc1": ("r1", "r3")})),
        (({}, {"dc1": ("r1", "r2", "r3")}), ({}, {"dc1": ("r2",)})),
        (({}, {"dc1": ("r1", "r2")}), ({}, {"dc1": ("r2", "r3")})),
        (({"dc1": 2}, {}), ({}, {"dc1": ("r1", "r2", "r3")})),
        (({"dc1": 3}, {}), ({}, {"dc1": ("r2",)})),
        (({}, {"dc1": ("r1",)}), ({}, {"dc1": ("r2", "r3")})),
        (({}, {"dc1": ("r1", "r2")}), ({"dc1": 3}, {})),
        (({}, {"dc1": ("r1",)}), ({}, {"dc1": ("r1",), "dc2": ("r4", "r5")})),
        (({}, {"dc1": ("r1",), "dc2": ("r4", "r5")}), ({"dc2": 0}, {})),
        (({}, {"dc1": ("r1", "r2")}), ({"dc1": 0}, {"dc2": ("r4", "r5")})),
    ],
)
def test_rack_lists_grow_shrink_and_change(
    one: tuple[dict[str, int], Racks], two: tuple[dict[str, int], Racks]
) -> None:
    world = listed(TWO_DCS, one[1], one[0], 8)
    began, before = world.image.epoch, keyspace(world.image).wanted
    asks(world, two[1], two[0])
    done(world)
    after = keyspace(world.image).wanted
    kept = {dc: racks for dc, racks in one[1].items() if dc not in two[0]}
    assert after.racks == {**kept, **two[1]}
    fewest, most = sorted(sum(each.copies.values()) for each in (before, after))
    replicas = {len(row.reads) for image, row in in_service(world) if image.epoch > began}
    assert min(replicas) >= fewest and max(replicas) <= max(
        most, sum({**before.copies, **after.copies}.values())
    )
    for dc in ("dc1", "dc2"):
        if dc in after.racks or dc not in after.copies:
            assert all_racks(world, dc) == {after.racks.get(dc, ())}
    world.until(world.at_rest, "rest", 600)


@pytest.mark.parametrize("to", [("r1", "r3"), ("r1", "r2", "r3"), ("r1",), ("r3",)])
def test_cancel_restores_the_previous_racks(to: tuple[str, ...]) -> None:
    world = listed(SIX, {"dc1": ("r1", "r2")}, count=32)
    asks(world, {"dc1": to})
    world.until(lambda: len(all_racks(world)) > 1, "some to change", 300)
    world.pass_s(10)
    assert world.apply(Cancel(CHANGE)) is None
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.CANCELLED, "its end", 900)
    assert all_racks(world) == {("r1", "r2")}
    assert keyspace(world.image).racks == {"dc1": ("r1", "r2")}
    world.until(world.at_rest, "rest", 600)
    assert all_racks(world) == {("r1", "r2")}


def move(tablet: int, source: str, target: str, *, beyond: bool = False) -> MoveTablets:
    return MoveTablets(
        (TabletMove(table=TABLE, tablet=tablet, from_node=source, to_node=target, beyond=beyond),)
    )


def test_manual_move_must_stay_in_its_rack() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2")}, count=1)
    world.balances = False
    (row,) = tablets(world)
    source = next(name for name in row.reads if name.startswith("a"))
    other = "a1" if source == "a2" else "a2"
    refused = world.apply(move(0, source, "c1"))
    assert refused is not None and refused.code == "rack_list"
    assert "r1, r2" in refused.message and "rack r1" in refused.hint
    assert code_of(world.apply(move(0, "", "c1", beyond=True))) == "rack_list"
    assert code_of(world.apply(move(0, "", other, beyond=True))) == "rack_list"
    assert code_of(world.apply(move(0, source, ""))) == "too_few_replicas"
    assert world.apply(move(0, source, other), "within") is None
    world.run()
    assert status_of(world, "within") is RequestStatus.DONE


def test_manual_deletion_is_allowed_only_in_racks_off_the_list() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2", "r3")}, count=1)
    world.balances = False
    asks(world, {"dc1": ("r1", "r2")})
    (row,) = tablets(world)
    of = {world.image.membership.nodes[name].rack: name for name in row.reads}
    assert code_of(world.apply(move(0, of["r1"], ""))) == "rack_list"
    assert world.apply(move(0, of["r3"], ""), "gone") is None
    world.run()
    assert status_of(world, "gone") is RequestStatus.DONE
    assert status_of(world, CHANGE) is RequestStatus.DONE


def test_verdict_names_the_rack_list() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2")}, count=4)
    found = tablet_verdicts(world.image, TABLE, 0)
    assert not isinstance(found, Rejection)
    for verdict in found:
        nodes = world.image.membership.nodes
        ruled = verdict.rule is Rule.RACK
        same = nodes[verdict.source].rack == nodes[verdict.target].rack
        holds = verdict.rule is Rule.HOLDS_ONE
        assert ruled == (not same and not holds)
        if ruled:
            assert verdict.reason.startswith(
                "one replica is in each of the racks r1, r2 (rack list)"
            )


def test_new_node_receives_only_replicas_of_its_rack() -> None:
    world = listed("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1", {"dc1": ("r1", "r2")}, count=16)
    for name, rack in (("a2", "r1"), ("c2", "r3")):
        world.add(name, dc="dc1", rack=rack)
        world.run()
    world.until(world.at_rest, "rest", 900)
    held = Counter(name for row in tablets(world) for name in row.reads)
    assert held == {"a1": 8, "a2": 8, "b1": 16}
    assert all_racks(world) == {("r1", "r2")}
    assert not proposal(world.image).moves, "the log would refuse what leaves the racks"


def test_tables_with_and_without_rack_lists_are_balanced_together() -> None:
    world = listed(f"{SIX} dc1/r2/b3", {"dc1": ("r1", "r2")}, count=16)
    assert world.apply(creates({"dc1": 2}, {}, 16, "other")) is None
    assert world.apply(CreateTable("other.t")) is None
    world.add("a3", dc="dc1", rack="r1")
    world.run()
    world.until(world.at_rest, "rest", 900)
    assert all_racks(world) == {("r1", "r2")}
    held = Counter(name for row in tablets(world) for name in row.reads)
    assert {held[name] for name in ("a1", "a2", "a3", "b1", "b2", "b3")} == {5, 6}


def test_leaving_node_moves_tablets_within_its_rack_and_the_last_one_stays() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2")})
    assert world.apply(Leave("a1"), "leave") is None
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the leave", 600)
    assert all_racks(world) == {("r1", "r2")}
    refused = world.apply(Leave("a2"))
    assert refused is not None and refused.code == "last_of_rack"
    assert "r1" in refused.message and "stele keyspace alter music" in refused.hint
    assert world.apply(Leave("c1")) is None, "nobody names its rack"
    world.run()
    assert world.apply(Leave("c2")) is None


def test_node_needed_by_a_rack_change_or_its_cancel_cannot_leave() -> None:
    world = listed("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1", {"dc1": ("r1", "r2")})
    world.balances = False
    asks(world, {"dc1": ("r1", "r3")})
    for node in ("b1", "c1"):
        assert code_of(world.apply(Leave(node))) == "last_of_rack"
    world.balances = True
    done(world)
    assert world.apply(Leave("b1")) is None


def test_replicas_of_a_dead_node_are_rebuilt_in_its_rack() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2", "r3")})
    world.crash("a1")
    world.pass_s(20)
    assert world.apply(Remove(node_id="a1"), "remove") is None
    world.until(lambda: status_of(world, "remove") is RequestStatus.DONE, "the removal", 900)
    assert all_racks(world) == {("r1", "r2", "r3")}
    assert all("a2" in row.reads for row in tablets(world))
    world.crash("a2")
    world.pass_s(20)
    assert code_of(world.apply(Remove(node_id="a2"))) == "last_of_rack"
    assert world.replace("a3", "a2") is None
    world.run()
    assert all("a3" in row.reads for row in tablets(world))


def test_rack_change_replaces_replicas_of_dead_nodes() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2")}, count=4)
    for dead in ("b1", "b2"):
        world.crash(dead)
    world.pass_s(20)
    assert world.apply(Exclude(("b1", "b2"))) is None
    world.pass_s(10)
    asks(world, {"dc1": ("r1", "r3")})
    done(world)
    assert all_racks(world) == {("r1", "r3")}


def test_change_is_cancelled_when_a_named_rack_has_no_nodes() -> None:
    world = listed("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1", {"dc1": ("r1", "r2")}, count=16)
    world.balances = False
    asks(world, {"dc1": ("r1", "r3")})
    world.pass_s(5)
    world.crash("c1")
    world.pass_s(20)
    assert world.apply(Exclude(("c1",))) is None
    world.pass_s(20)
    world.balances = True
    world.until(lambda: status_of(world, CHANGE) is RequestStatus.CANCELLED, "its end", 600)
    assert "no node in rack 'r3' of 'dc1' takes tablets" in error_of(world, CHANGE)
    assert all_racks(world) == {("r1", "r2")}


def test_wait_for_a_down_rack_reports_remaining_tablets_and_time() -> None:
    world = listed("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1", {"dc1": ("r1", "r2")}, count=16)
    asks(world, {"dc1": ("r1", "r3")})

    def moved() -> int:
        return sum("c1" in row.reads for row in tablets(world))

    world.until(lambda: moved() >= 4, "some", 300)
    world.crash("c1")
    world.pass_s(60)
    assert status_of(world, CHANGE) is RequestStatus.RUNNING
    (wait,) = (w for w in world.brain.steps.waits if CHANGE in w.request_ids)
    left = 16 - moved()
    assert wait.what == f"{left} of 16 tablets of {TABLE} to have dc1=r1,r3"
    assert wait.eta_s is not None
    world.nodes["c1"].alive = True
    done(world)


def test_dry_run_counts_replicas_that_change_racks() -> None:
    world = listed("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1", {"dc1": ("r1", "r2")}, count=16)
    found = planned(world, KeyspaceRfChange(KEYSPACE, {}, racks={"dc1": ("r1", "r3")}))
    assert found.plan.foreseen == (
        f"{TABLE}: 0 replicas of 16 tablets are to be made, 0 to be deleted, 16 to go to another rack",
    )
    assert all_racks(world) == {("r1", "r2")}


def test_siblings_move_together_within_their_racks() -> None:
    world = listed(SIX, {"dc1": ("r1", "r2")}, count=16)
    assert world.apply(ResizeTable(TABLE, 8), "merge") is None
    world.until(lambda: status_of(world, "merge") is RequestStatus.DONE, "the merge", 900)
    assert {racks_of(image, row) for image, row in in_service(world)} == {("r1", "r2")}


def test_table_created_during_a_change_gets_the_new_racks() -> None:
    world = listed(SIX, {}, {"dc1": 2})
    world.balances = False
    asks(world, {"dc1": ("r2", "r3")})
    assert world.apply(CreateTable("music.late")) is None
    assert world.apply(ResizeTable(TABLE, 16)) is None
    world.balances = True
    done(world)
    late = {racks_of(world.image, row) for row in tablets(world, "music.late")}
    assert late | all_racks(world) == {("r2", "r3")}


@pytest.mark.parametrize("seed", range(6))
def test_racks_are_kept_under_random_commands(seed: int) -> None:
    """Random changes, cancels, joins, leaves, crashes, splits and manual moves. Each epoch is checked."""
    chance = random.Random(seed)
    world = listed(SIX, {"dc1": ("r1", "r2")}, count=chance.choice((4, 8)))
    changes = list[str]()
    for at in range(10):
        kind = chance.choice(
            ("list", "list", "list", "number", "cancel", "leave", "join", "crash", "resize", "move")
        )
        if kind == "list":
            racks = tuple(chance.sample(("r1", "r2", "r3"), chance.randrange(1, 4)))
            changes.append(f"change-{at}")
            world.apply(KeyspaceRfChange(KEYSPACE, {}, racks={"dc1": racks}), changes[-1])
        elif kind == "number":
            changes.append(f"change-{at}")
            world.apply(KeyspaceRfChange(KEYSPACE, {"dc1": chance.randrange(1, 4)}), changes[-1])
        elif kind == "cancel" and changes:
            world.apply(Cancel(changes[-1]))
        elif kind == "leave":
            world.apply(Leave(chance.choice([*world.nodes])))
        elif kind == "join":
            world.add(f"n{at}", dc="dc1", rack=chance.choice(("r1", "r2", "r3")))
        elif kind == "resize":
            count = len(tablets(world))
            world.apply(ResizeTable(TABLE, chance.choice((2 * count, max(1, count // 2)))))
        elif kind == "move":
            row, nodes = chance.choice(tablets(world)), [*world.nodes]
            world.apply(move(0, chance.choice(row.reads), chance.choice(nodes)))
        else:
            down = chance.choice([*world.nodes])
            world.crash(down)
            world.pass_s(chance.choice((5, 30)))
            world.nodes[down].alive = True
        world.pass_s(chance.choice((1, 5, 30)))
    world.until(world.at_rest, "rest", 3000)
    wanted = keyspace(world.image).wanted
    assert {len(row.reads) for row in tablets(world)} == {wanted.copies["dc1"]}
    if wanted.racks:
        assert all_racks(world) == {wanted.racks["dc1"]}
