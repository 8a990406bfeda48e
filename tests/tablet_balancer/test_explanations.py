"""Explanations of a tablet's place and of planned moves equal the balancer's later actions."""

from __future__ import annotations

from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import plan_to_end, proposal, tablet_verdicts
from stele.domain.balancer.resizing import largest
from stele.domain.base import Rejection
from stele.domain.commands import Exclude, Leave, ResizeTable
from stele.domain.planner.planned import NodeVerdict, Rule, TableSizes
from stele.domain.tablets.maps import held_by
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.load_of import IDLE, UNCOUNTED, Rate, even, loads_of


def told(world: World, tablet: int, *down: str) -> dict[tuple[str, str], NodeVerdict]:
    found = tablet_verdicts(world.image, TABLE, tablet, Conditions({*down}))
    assert isinstance(found, list), found
    return {(verdict.source, verdict.target): verdict for verdict in found}


def test_every_node_gets_a_verdict_for_each_replica() -> None:
    world = with_table("a1 b1 c1", 4)
    world.add("d1")
    world.add("z1", "dc2")
    world.run()
    row = tablets(world)[0].reads
    found = told(world, 0)
    assert {source for source, _ in found} == {*row}
    assert found[row[0], row[1]].rule is Rule.HOLDS_ONE
    assert found[row[0], "z1"].rule is Rule.OTHER_DC
    assert [v.target for v in found.values() if v.accepted] == ["d1", "d1"]
    assert found[row[0], "d1"].rule is Rule.EVENER
    shut = told(world, 0, "d1")[row[0], "d1"]
    assert (shut.rule, shut.accepted) == (Rule.SHUT, False)
    assert "d1 is silent" in shut.reason


def test_verdict_names_lost_replicas_and_resizing_tables() -> None:
    world = with_table("a1 b1 c1", 8)
    pairs = [*zip(tablets(world)[::2], tablets(world)[1::2], strict=True)]
    assert any({*even.reads} != {*odd.reads} for even, odd in pairs)
    world.add("d1")
    world.run()
    assert world.apply(ResizeTable(TABLE, 4)) is None
    (source, _) = tablets(world)[0].reads
    still = told(world, 0)[source, "d1"]
    assert (still.rule, still.accepted) == (Rule.STANDS_STILL, False)
    assert world.apply(Leave(source)) is None
    assert told(world, 0)[source, "d1"].rule is Rule.LEAVES
    single = with_table("a1 b1 c1", 4, rf=1)
    single.crash("b1")
    single.pass_s(20)
    assert single.apply(Exclude(("b1",), force=True)) is None
    single.run()
    number = next(at for at, each in enumerate(tablets(single)) if each.reads == ("b1",))
    lost = told(single, number)["b1", "a1"]
    assert (lost.rule, lost.accepted) == (Rule.LOST, False)
    assert lost.reason == "what b1 has of it may be on dead nodes alone"


def test_unknown_table_or_tablet_is_refused() -> None:
    world = with_table("a1 b1 c1", 4)
    for table, tablet, code in ((TABLE, 4, "unknown_tablet"), ("music.none", 0, "unknown_table")):
        found = tablet_verdicts(world.image, table, tablet)
        assert isinstance(found, Rejection) and found.code == code


def test_complete_plan_equals_the_outcome_of_the_balancer() -> None:
    world = with_table("a1 b1 c1", 16)
    world.add("d1")
    world.run()
    found = plan_to_end(world.image)
    assert found.converged and not found.unmovable
    assert {move.keyspace for move in found.moves} == {"music"}
    assert all(move.target[0] == "d1" and move.reason for move in found.moves)
    world.balances = True
    wanted = {node.id: node.replicas for node in found.after.nodes}
    world.until(lambda: held_by(world.image) == wanted, "the plan", 300)
    asked = [r for r in world.image.requests.requests.values() if r.to_node]
    assert len(asked) <= len(found.moves)
    assert plan_to_end(world.image).moves == ()


def test_tablets_of_a_node_in_replacement_are_left_to_the_new_node() -> None:
    world = with_table("a1 b1 c1 d1", 16)
    world.crash("b1")
    world.pass_s(20)
    assert world.replace("b9", "b1") is None
    world.until(lambda: bool(world.image.membership.excluded()), "b1 to be excluded")
    assert not world.image.topology.transitions, "the replacement has not begun"
    assert proposal(world.image).moves == ()


def test_hottest_tablets_come_first_with_the_reason_of_the_count() -> None:
    world = with_table("a1 b1 c1", 4)
    hot = {1: Rate(2000, 3000), 2: Rate(0, 9000, 7), 3: IDLE}
    loads = loads_of(world.image, lambda *_: 1, lambda _, tablet: hot.get(tablet, UNCOUNTED))
    found = largest(world.image, Conditions(loads=loads), TABLE, 2, hottest=True)
    assert isinstance(found, TableSizes)
    shown = [(each.tablet, each.reads_per_s, each.writes_per_s) for each in found.largest]
    assert shown == [(2, 9000, 7), (1, 5000, 0)]
    assert (found.counted, found.rate, found.target_rate) == (3, 14007, 2500)
    assert (found.wanted, found.tablets) == (4, 4)
    assert found.why == (
        "its hottest tablet, 2, serves 9,007 operations a second; the target is 2,500;"
        " a split does not help, half of a tablet would serve 9,000"
    )
    unknown = largest(world.image, Conditions(loads=loads), TABLE, 9)
    assert isinstance(unknown, TableSizes)
    assert (unknown.largest[0].tablet, unknown.largest[0].reads_per_s) == (0, None)
    hot[2] = even(9000)
    loads = loads_of(world.image, lambda *_: 1, lambda _, tablet: hot.get(tablet, UNCOUNTED))
    split = largest(world.image, Conditions(loads=loads), TABLE, 1)
    assert isinstance(split, TableSizes) and split.wanted == 8


def test_largest_tablets_come_first_without_unknown_sizes() -> None:
    world = with_table("a1 b1 c1", 4)
    loads = loads_of(world.image, lambda _, tablet: 100 * tablet)
    found = largest(world.image, Conditions(loads=loads), TABLE, 2)
    assert isinstance(found, TableSizes)
    assert (found.tablets, found.known, found.size_bytes) == (4, 4, 600)
    assert [(each.tablet, each.size_bytes) for each in found.largest] == [(3, 300), (2, 200)]
    assert [each.replicas for each in found.largest] == [tablets(world)[n].reads for n in (3, 2)]
    unknown = largest(world.image, Conditions(), TABLE, 2)
    assert isinstance(unknown, TableSizes) and (unknown.known, unknown.largest) == (0, ())
    assert isinstance(largest(world.image, Conditions(loads=loads), "music.none", 2), Rejection)
