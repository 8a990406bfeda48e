"""Co-located tables: one tablet map for several tables, whatever is done to any of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stele.agent.pulling import portions_of
from stele.domain.balancer.load import Conditions, known_stats
from stele.domain.balancer.proposals import plan_to_end, tablet_verdicts
from stele.domain.balancer.resizing import TableLoad, largest, loaded, sizing
from stele.domain.base import Rejection
from stele.domain.commands import (
    AlterTable,
    AnyCommand,
    Cancel,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    KeyspaceRfChange,
    MoveTablets,
    RepairTable,
    RepairTablets,
    ResizeTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Truncate,
)
from stele.domain.evolve import apply_facts
from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.domain.model.operations import TabletMove, TabletRepair
from stele.domain.model.schema import Table, TableOptions
from stele.domain.names import BALANCER, RequestStatus, TransitionState
from stele.domain.snapshot import image_to_facts
from stele.domain.tablets.maps import held_by, read_from
from tests.coordinator.stories import reach, status_of
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.epochs import code_of
from tests.domain.load_of import Rate, even, loads_of
from tests.domain.tablets.test_resizing import TARGET
from tests.domain.tablets.test_resizing import cluster as sized

VIEW = "music.songs_by_band"
STATE = TransitionState


def row(world: World, name: str) -> Table:
    found = world.image.schema.table_named(name)
    assert found is not None
    return found


def with_view(nodes: str = "a1 b1 c1 d1", count: int = 4, rf: int = 2) -> World:
    world = with_table(nodes, count, rf)
    assert world.apply(CreateTable(VIEW, colocated_with=TABLE)) is None
    return world


def elsewhere(world: World, tablet: int, table: str = TABLE) -> TabletMove:
    """Return a move of a tablet from its first replica to a node without one."""
    replicas = tablets(world, TABLE)[tablet].reads
    target = min({*world.image.membership.nodes} - {*replicas})
    return TabletMove(table=table, tablet=tablet, from_node=replicas[0], to_node=target)


def test_colocated_table_shares_tablets_but_has_its_own_data() -> None:
    world = with_view()
    base, view = row(world, TABLE), row(world, VIEW)
    assert view.placement == base.placement and view.base_table_id == base.table_id
    assert (base.base_table_id, view.data_id == base.data_id) == ("", False)
    schema = world.image.schema
    assert [each.name for each in schema.using(base.placement)] == [TABLE, VIEW]
    assert schema.map_owners() == [base] and schema.group_of(view) == [base, view]
    assert held_by(world.image) == Counter(n for each in tablets(world) for n in each.reads)
    for node in "a1", "b1":
        stats = {data.name: numbers for data, _, numbers in read_from(world.image, node)}
        assert stats[TABLE] == stats[VIEW], "nodes measure both"


def test_invalid_colocation_is_refused() -> None:
    world = with_view()
    assert world.apply(CreateKeyspace("ring", {"dc1": 2})) is None
    assert world.apply(CreateTable("ring.t")) is None
    assert world.apply(CreateKeyspace("other", {"dc1": 2}, tablets=True)) is None
    assert world.apply(CreateTable("other.t")) is None

    def refusal(name: str, base: str, **options: object) -> str:
        asked = CreateTable(name, TableOptions(**options), colocated_with=base)  # type: ignore[arg-type]
        return code_of(world.apply(asked))

    assert refusal("ring.u", "ring.t") == "no_tablets"
    assert refusal("music.u", "other.t") == "other_keyspace"
    assert refusal("music.u", "music.nothing") == "unknown_table"
    assert refusal("music.u", "music") == "unknown_table"
    assert refusal("music.u", "music.u") == "unknown_table"
    assert refusal("music.u", VIEW) == "base_is_colocated"
    assert refusal(VIEW, TABLE) == "table_exists"
    assert refusal("music.u", TABLE, auto_repair_enabled="on") == "bad_table_options"
    assert refusal("music.u", TABLE, auto_repair_threshold=5) == "bad_table_options"
    assert "music.u" not in world.image.schema.table_ids


def test_options_of_a_group_must_be_compatible() -> None:
    world = with_view()
    assert world.apply(AlterTable(TABLE, TableOptions(min_tablet_count=8))) is None
    few = TableOptions(max_tablet_count=4)
    asked = CreateTable("music.u", few, colocated_with=TABLE)
    assert code_of(world.apply(asked)) == "bad_table_options"
    assert code_of(world.apply(AlterTable(VIEW, few))) == "bad_table_options"
    repaired = TableOptions(auto_repair_enabled="on")
    assert code_of(world.apply(AlterTable(VIEW, repaired))) == "bad_table_options"
    assert world.apply(AlterTable(VIEW, TableOptions(max_tablet_count=8))) is None
    many = TableOptions(min_tablet_count=16, auto_repair_enabled="on")
    assert code_of(world.apply(AlterTable(TABLE, many))) == "bad_table_options"
    assert world.apply(AlterTable(TABLE, repaired)) is None


def test_base_table_is_dropped_last_and_takes_no_new_tables_meanwhile() -> None:
    world = with_view()
    refused = world.apply(DropTable(TABLE))
    assert refused is not None and refused.code == "has_colocated_tables"
    assert f"stele table drop {VIEW}" in refused.hint
    assert world.apply(DropTable(VIEW), "drop") is None
    world.until(lambda: row(world, VIEW).dropped_version, "the drop")
    refused = world.apply(DropTable(TABLE))
    assert refused is not None and refused.hint.startswith("Wait")
    world.run()
    assert VIEW not in world.image.schema.table_ids and len(tablets(world)) == 4
    assert not world.image.schema.colocated
    assert world.apply(DropTable(TABLE)) is None
    asked = CreateTable(VIEW, colocated_with=TABLE)
    assert code_of(world.apply(asked)) == "table_being_dropped", "also before it has begun"
    world.until(lambda: row(world, TABLE).dropped_version, "the drop")
    assert code_of(world.apply(asked)) == "table_being_dropped"
    world.run()
    assert not world.image.schema.tables
    assert {*world.image.ring.placements} == set()


def test_dropped_keyspace_removes_colocated_tables_while_tablets_move() -> None:
    world = with_view()
    world.nodes["d1"].mute = True
    assert world.apply(MoveTablets((elsewhere(world, 0, VIEW),)), "move") is None
    reach(world, "move", STATE.WRITE_BOTH_READ_OLD, fenced=None)
    assert world.apply(DropKeyspace("music")) is None
    world.nodes["d1"].mute = False
    world.run()
    schema = world.image.schema
    assert not (schema.tables or schema.colocated or world.image.ring.placements)


@pytest.mark.parametrize(
    "state",
    [STATE.ALLOW_WRITE_BOTH_READ_OLD, STATE.WRITE_BOTH_READ_OLD, STATE.STREAMING],
)
def test_new_replica_streams_each_table_that_existed_at_the_order(
    state: TransitionState,
) -> None:
    """Rows of later tables are written to the new replica from the start (docs/decisions/024)."""
    world = with_view()
    move = elsewhere(world, 1, VIEW)
    world.nodes[move.to_node].mute = True
    assert world.apply(MoveTablets((move,)), "move") is None
    reach(world, "move", state, fenced=None)
    assert world.apply(CreateTable("music.late", colocated_with=TABLE)) is None
    entered = tablets(world)[1]
    if state is not STATE.ALLOW_WRITE_BOTH_READ_OLD:
        assert {move.from_node, move.to_node} <= {*entered.writes}
    reach(world, "move", STATE.STREAMING)
    transition = world.image.topology.of_request("move")
    assert transition is not None and transition.table_id == row(world, TABLE).table_id
    (portion,) = portions_of(world.image, transition, move.to_node, {}, frozenset())
    names = (TABLE, VIEW, "music.late")
    assert {*portion.data_ids} == {row(world, name).data_id for name in names}
    assert world.apply(DropTable("music.late"), "drop") is None
    world.until(lambda: row(world, "music.late").dropped_version, "the drop")
    (portion,) = portions_of(world.image, transition, move.to_node, {}, frozenset())
    assert {*portion.data_ids} == {row(world, name).data_id for name in (TABLE, VIEW)}


def test_tablet_of_a_group_has_one_move_or_repair_at_a_time() -> None:
    world = with_view()
    assert world.apply(MoveTablets((elsewhere(world, 0, VIEW),)), "move") is None
    assert code_of(world.apply(MoveTablets((elsewhere(world, 0, TABLE),)))) == "tablet_moves"
    both = (elsewhere(world, 1, VIEW), elsewhere(world, 1, TABLE))
    before = {*world.image.requests.unfinished_by_id}
    assert world.apply(MoveTablets(both)) is None
    assert len({*world.image.requests.unfinished_by_id} - before) == 1
    world.run()
    assert status_of(world, "move") is RequestStatus.DONE
    assert world.apply(RepairTablets((TabletRepair(table=VIEW, tablet=2),)), "repair") is None
    again = RepairTablets((TabletRepair(table=TABLE, tablet=2),))
    assert code_of(world.apply(again)) == "tablet_is_repaired"
    world.run()
    base = row(world, TABLE).table_id
    assert [bool(at) for at in world.image.repairs.of(base, 4)] == [False, False, True, False]
    assert {*world.image.repairs.tables} == {base}
    assert world.apply(RepairTable(VIEW), "all") is None
    assert code_of(world.apply(RepairTable(TABLE))) == "table_is_repaired"
    world.balances = True
    world.until(lambda: status_of(world, "all") is RequestStatus.DONE, "the repair of both")
    world.balances = False
    assert world.image.repairs.of(base, 4).min() > 0
    assert world.apply(Truncate(VIEW)) is None
    assert world.apply(Truncate(TABLE)) is None
    world.run()
    assert world.image.repairs.of(base, 4).min() > 0, "what is written since was never lacking"
    assert world.apply(ResizeTable(VIEW, 8), "resize") is None
    assert code_of(world.apply(ResizeTable(TABLE, 8))) == "table_resizes"
    world.run()
    assert len(tablets(world, VIEW)) == 8 and len(world.image.repairs.of(base, 8)) == 8
    assert world.apply(DropTable(VIEW)) is None
    world.run()
    assert world.image.repairs.of(base, 8).min() > 0
    assert world.apply(Truncate(TABLE)) is None
    world.run()
    assert not world.image.repairs.tables


def test_load_balancing_moves_colocated_tablets_together() -> None:
    """Four tables of one tablet in two pairs, all on one node; a second node joins."""
    world = with_table("a1", 1, rf=1)
    for name, base in ((VIEW, TABLE), ("music.b", ""), ("music.bv", "music.b")):
        assert world.apply(CreateTable(name, colocated_with=base)) is None
    world.add("b1", rack="r")
    world.until(lambda: status_of(world, "join-b1") is RequestStatus.DONE, "the join")
    plan = plan_to_end(world.image, Conditions(now_ms=world.now_ms))
    assert sorted(f"{move.keyspace}.{move.table}" for move in plan.moves) in (
        [TABLE, VIEW],
        ["music.b", "music.bv"],
    )
    world.balances = True
    names = (TABLE, VIEW, "music.b", "music.bv")

    def on() -> dict[str, str]:
        return {name: tablets(world, name)[0].reads[0] for name in names}

    world.until(lambda: len({*on().values()}) == 2, "both nodes to have some")
    world.pass_s(20)
    found = on()
    assert Counter(found.values()) == {"a1": 2, "b1": 2}
    assert found[TABLE] == found[VIEW] and found["music.b"] == found["music.bv"]


def run_sizing(world: World, sizes: dict[str, float], rounds: int = 12) -> None:
    """Resize as the balancer does with tables of these sizes, until it requests nothing more."""

    def size_of(table: str, _: int) -> int:
        return int(sizes[table] / len(tablets(world, table)))

    for _ in range(rounds):
        loads = loads_of(world.image, size_of)
        found = sizing(world.image, loaded(known_stats(world.image, loads)))
        if not found.resizes:
            return
        for resize in found.resizes:
            assert world.apply(ResizeTable(resize.table, resize.tablets)) is None
        world.run()
    raise AssertionError("it goes on and on")


def test_split_and_merge_of_colocated_tables_use_their_total_size() -> None:
    """Each of the two should have half the target in a tablet. The sum of both decides."""
    world = sized()
    assert world.apply(CreateTable(VIEW, colocated_with=TABLE)) is None
    half = TARGET / 2
    run_sizing(world, {TABLE: 0.9 * half, VIEW: 2.9 * half})
    assert len(tablets(world)) == 1, "less than twice the target together"
    run_sizing(world, {TABLE: 3 * half, VIEW: 4 * half})
    assert len(tablets(world, TABLE)) == len(tablets(world, VIEW)) == 2
    run_sizing(world, {TABLE: 1.1 * half, VIEW: 0.1 * half})
    assert len(tablets(world, TABLE)) == len(tablets(world, VIEW)) == 1


def test_per_shard_goal_uses_the_count_of_each_table_of_a_group() -> None:
    world = sized(goal=4)
    assert world.apply(CreateTable(VIEW, colocated_with=TABLE)) is None
    for number in range(3):
        assert world.apply(CreateTable(f"music.t{number}")) is None
    sizes = {TABLE: 5.0 * TARGET / 2, VIEW: 5.0 * TARGET / 2}
    run_sizing(world, sizes | {f"music.t{number}": 0.0 for number in range(3)})
    assert len(tablets(world)) == 2
    assert {len(tablets(world, f"music.t{number}")) for number in range(3)} == {1}


def test_per_shard_limit_counts_replicas_of_each_table_of_a_group() -> None:
    """A single table would have enough room."""
    alone, group = sized(goal=12), sized(goal=12)
    for number in range(3):
        made = CreateTable(f"music.v{number}", colocated_with=TABLE)
        assert group.apply(made) is None
    for world, wanted in ((alone, 16), (group, 4)):
        options = TableOptions(min_tablet_count=16)
        assert world.apply(AlterTable(TABLE, options)) is None
        base = row(world, TABLE).data_id
        for _ in range(6):
            for resize in sizing(world.image, {base: TableLoad(0.0)}).resizes:
                assert world.apply(ResizeTable(resize.table, resize.tablets)) is None
            world.run()
        assert len(tablets(world)) == wanted
    assert group.apply(CreateTable("music.new")) is None
    assert len(tablets(group, "music.new")) == 1, "16 replicas are there for each shard, 12 wanted"


def test_options_of_a_colocated_table_count_and_are_named() -> None:
    world = sized()
    made = CreateTable(VIEW, TableOptions(min_tablet_count=2), colocated_with=TABLE)
    assert world.apply(made) is None
    (resize,) = sizing(world.image, {}).resizes
    assert (resize.table, resize.tablets) == (TABLE, 2)
    assert resize.why == "min_tablet_count is 2 (2 tables together)"


def test_loads_of_a_group_are_summed_and_shown_per_table() -> None:
    world = with_view("a1 b1", count=2)
    sizes, rates = {TABLE: 10, VIEW: 7}, {TABLE: even(100), VIEW: Rate(lower=40, writes=2)}
    loads = loads_of(world.image, lambda table, _: sizes[table], lambda table, _: rates[table])
    (base,) = known_stats(world.image, loads).values()
    assert base.sizes.tolist() == [17, 17] and base.rates.tolist() == [142, 142]
    assert base.lower.tolist() == [92, 92]
    conditions = Conditions(loads=loads)
    for name in (TABLE, VIEW):
        found = largest(world.image, conditions, name, 4)
        assert not isinstance(found, Rejection)
        assert (found.size_bytes, found.rate) == (2 * sizes[name], 2 * sum(rates[name]))
        assert found.why.endswith(" (2 tables together)")
    assert not isinstance(tablet_verdicts(world.image, VIEW, 1), Rejection)
    assert code_of(tablet_verdicts(world.image, "music.no", 1)) == "unknown_table"


@pytest.mark.parametrize("name", [TABLE, VIEW])
def test_balancing_switched_off_for_one_table_is_off_for_its_group(name: str) -> None:
    world = with_view("a1 b1 c1", count=8)
    world.add("d1", rack="r")
    world.until(lambda: status_of(world, "join-d1") is RequestStatus.DONE, "the join")
    world.run_balancer()
    asked = [r for r in world.image.requests.pending() if r.actor == BALANCER]
    assert asked
    assert world.apply(SwitchBalancingOff(name)) is None
    assert not [r for r in world.image.requests.pending() if r.actor == BALANCER]
    world.balances = True
    world.pass_s(40)
    assert not any("d1" in each.writes for each in tablets(world))
    other = VIEW if name == TABLE else TABLE
    refused = world.apply(SwitchBalancingOn(other))
    assert refused is not None and refused.code == "balancing_off"
    assert f"stele balance on {name}" in refused.hint
    assert world.apply(SwitchBalancingOn(name)) is None
    world.until(lambda: any("d1" in each.reads for each in tablets(world)), "it to be balanced")


def test_replication_change_counts_a_group_once() -> None:
    world = with_view(count=2)
    world.balances = True
    assert world.apply(KeyspaceRfChange("music", {"dc1": 3}), "change") is None
    world.until(lambda: status_of(world, "change") is RequestStatus.DONE, "the change")
    assert {len(each.reads) for each in tablets(world, VIEW)} == {3}
    moves = [
        r for image in world.images for r in image.requests.unfinished_by_id.values() if r.recounts
    ]
    assert {r.table_id for r in moves} == {row(world, TABLE).table_id}


@pytest.mark.parametrize("seed", range(6))
def test_group_stays_together_under_random_commands(seed: int) -> None:
    """Invariants of the world hold at each step; at the end a snapshot gives the same image."""
    chance = random.Random(seed)
    world = with_view(count=2)
    world.balances = bool(seed % 2)
    views = (VIEW, "music.v1", "music.v2", "music.v3")

    def anything() -> AnyCommand:
        name = chance.choice((TABLE, *views))
        count = len(tablets(world))
        tablet = chance.randrange(count)
        commands: tuple[AnyCommand, ...] = (
            CreateTable(chance.choice(views), colocated_with=chance.choice((TABLE, name))),
            CreateTable(TABLE),
            DropTable(name),
            Truncate(name),
            ResizeTable(name, chance.choice((2 * count, max(1, count // 2)))),
            MoveTablets((elsewhere(world, tablet, name),)),
            RepairTablets((TabletRepair(table=name, tablet=tablet),)),
            RepairTable(name),
            chance.choice((SwitchBalancingOff(name), SwitchBalancingOn(name))),
            chance.choice(
                (
                    AlterTable(name, TableOptions(min_tablet_count=4)),
                    AlterTable(name, reset=("min_tablet_count",)),
                )
            ),
            Cancel(chance.choice([*world.image.requests.unfinished_by_id, "none"])),
        )
        return chance.choice(commands)

    for _ in range(60):
        if world.image.schema.serving(TABLE) is None:
            world.pass_s(20)
            world.apply(CreateTable(TABLE))
            continue
        world.apply(anything())
        if chance.random() < 0.1:
            victim = chance.choice([*world.nodes])
            world.crash(victim)
            world.pass_s(chance.random() * 8)
            world.nodes[victim].alive = True
        world.pass_s(chance.random() * 4)
        schema = world.image.schema
        for table in schema.tables.values():
            owner = schema.tables[table.base_table_id or table.table_id]
            assert owner.placement == table.placement and not owner.base_table_id
            assert table.placement in world.image.ring.placements
    world.balances = True
    for name in (TABLE, *views):
        world.apply(SwitchBalancingOn(name))
    world.until(lambda: not world.image.requests.unfinished_by_id, "all requests to end", 900)
    image = world.image
    again = apply_facts(EMPTY_FOR_FOLLOWERS, image_to_facts(image))
    assert again.schema == image.schema and again.ring == image.ring
