"""Create, alter and drop tables: accepted and refused commands, and the initial replicas."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    AlterTable,
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    KeyspaceRfChange,
    MoveTablets,
    RepairTable,
    RepairTablets,
    ResizeTable,
    SnapshotTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Truncate,
)
from stele.domain.evolve import apply_facts
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import TabletMove, TabletRepair
from stele.domain.model.schema import Table, TableOptions
from stele.domain.names import RequestStatus
from stele.domain.tablets.maps import held_by
from stele.domain.tablets.moves import check_move
from stele.domain.topology.operations.tablet_migration import MAX_MOVES
from tests.coordinator.stories import status_of
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World, three_nodes
from tests.domain.epochs import code_of


def with_tablets(initial: int = 8, rf: int = 2) -> World:
    world = three_nodes()
    made = CreateKeyspace("music", {"dc1": rf}, tablets=True, initial_tablets=initial)
    assert world.apply(made) is None
    return world


def table(world: World, name: str = "music.songs") -> Table:
    found = world.image.schema.table_named(name)
    assert found is not None
    return found


def test_new_table_is_even_and_served_under_its_full_name() -> None:
    world = with_tablets()
    assert world.apply(CreateTable("music.songs")) is None
    assert world.apply(CreateTable("music.bands")) is None
    held = Counter[str]()
    for name in ("music.songs", "music.bands"):
        data = world.image.schema.serving(name)
        assert data is not None and data.name == name
        rows = world.image.ring.placements[data.placement].rows
        assert len(rows) == 8
        assert all(len({*row.reads}) == 2 for row in rows)
        held.update(node for row in rows for node in row.reads)
    assert max(held.values()) - min(held.values()) <= 1
    assert held_by(world.image) == held
    assert world.image.schema.serving("music") is None, "its data is in its tables"
    world.run()


def test_table_without_tablets_uses_the_placement_of_its_keyspace() -> None:
    world = three_nodes()
    assert world.apply(CreateTable("library.books")) is None
    data, keyspace = (world.image.schema.serving(n) for n in ("library.books", "library"))
    assert data is not None and keyspace is not None
    assert data.placement == keyspace.placement
    assert data.data_id != keyspace.data_id
    found = world.image.schema.using(keyspace.placement)
    assert {each.data_id for each in found} == {data.data_id, keyspace.data_id}
    assert world.apply(KeyspaceRfChange("library", {"dc1": 3})) is None
    world.run()
    moved = world.image.schema.serving("library.books")
    assert moved is not None and moved.placement == "dc1:3"
    assert moved.placed_version > 0, "its requests of before are stale, too"


def test_name_is_free_once_the_drop_is_done() -> None:
    world = with_tablets()
    assert world.apply(CreateTable("music.songs")) is None
    first = table(world).table_id
    assert code_of(world.apply(CreateTable("music.songs"))) == "table_exists"
    assert world.apply(DropTable("music.songs")) is None
    assert code_of(world.apply(DropTable("music.songs"))) == "table_being_dropped"
    world.until(lambda: table(world).dropped_version, "the drop")
    assert code_of(world.apply(CreateTable("music.songs"))) == "table_being_dropped"
    world.run()
    assert world.image.schema.table_named("music.songs") is None
    assert not [name for name in world.image.ring.placements if name.endswith(first)]
    assert world.apply(CreateTable("music.songs")) is None
    assert table(world).table_id != first


def test_dropped_keyspace_removes_its_tables() -> None:
    world = with_tablets()
    for name in ("music.songs", "music.bands"):
        assert world.apply(CreateTable(name)) is None
    assert world.apply(DropKeyspace("music")) is None
    world.run()
    assert not world.image.schema.tables and not world.image.schema.table_ids
    assert {*world.image.ring.placements} == {"dc1:2"}


@pytest.mark.parametrize("drop", [DropTable("music.songs"), DropKeyspace("music")])
@pytest.mark.parametrize("status", [RequestStatus.PENDING, RequestStatus.RUNNING])
def test_no_command_is_accepted_for_a_table_that_is_being_dropped(
    drop: DropTable | DropKeyspace, status: RequestStatus
) -> None:
    world = with_tablets()
    assert world.apply(CreateTable("music.songs")) is None
    assert world.apply(drop, "drop") is None
    world.until(lambda: status_of(world, "drop") is status, status)
    kind = "table" if isinstance(drop, DropTable) else "keyspace"
    of_the_keyspace = (
        CreateTable("music.others"),
        CreateKeyspace("music", {"dc1": 1}),
        KeyspaceRfChange("music", {"dc1": 1}),
        SwitchBalancingOff("music"),
    )
    for command in (
        *(of_the_keyspace if kind == "keyspace" else ()),
        AlterTable("music.songs", TableOptions(min_tablet_count=16)),
        CreateTable("music.songs"),
        CreateTable("music.by_band", colocated_with="music.songs"),
        DropTable("music.songs"),
        MoveTablets((TabletMove(table="music.songs", tablet=0, from_node="a1", to_node="c1"),)),
        RepairTable("music.songs"),
        RepairTablets((TabletRepair(table="music.songs", tablet=0),)),
        ResizeTable("music.songs", 64),
        SnapshotTable(name="music.songs", snapshot="before"),
        SwitchBalancingOff("music.songs"),
        SwitchBalancingOn("music.songs"),
        Truncate("music.songs"),
    ):
        refused = world.apply(command)
        assert refused is not None and refused.code == f"{kind}_being_dropped", command
        assert refused.details == {"request_id": "drop"} and "request drop" in refused.message


def test_truncated_table_has_a_new_data_id_and_the_same_tablets() -> None:
    world = with_tablets()
    assert world.apply(CreateTable("music.songs")) is None
    before = table(world)
    assert world.apply(Truncate("music.songs")) is None
    world.run()
    after = table(world)
    assert after.data_id != before.data_id and after.placement == before.placement
    assert world.image.schema.of_data(before.data_id) is None


def test_alter_keeps_options_that_it_does_not_name() -> None:
    world, name = with_tablets(), "music.songs"
    assert world.apply(CreateTable(name, TableOptions(min_tablet_count=4))) is None
    assert world.apply(AlterTable(name, TableOptions(auto_repair_enabled="on"))) is None
    assert table(world).options == TableOptions(min_tablet_count=4, auto_repair_enabled="on")
    assert world.apply(AlterTable(name, reset=("min_tablet_count",))) is None
    assert table(world).options == TableOptions(auto_repair_enabled="on")
    assert code_of(world.apply(AlterTable(name))) == "no_option_named"
    for reset in ("nonsense", "max_tablet_count"):
        both = AlterTable(name, TableOptions(max_tablet_count=8), (reset,))
        assert code_of(world.apply(both)) == "bad_table_options"
    assert table(world).options == TableOptions(auto_repair_enabled="on")


def test_options_without_effect_are_refused() -> None:
    world, name = with_tablets(), "library.books"
    options = TableOptions(auto_repair_enabled="on")
    assert code_of(world.apply(CreateTable(name, options))) == "no_tablets"
    assert world.apply(CreateTable(name)) is None
    assert code_of(world.apply(AlterTable(name, options))) == "no_tablets"


def test_options_are_changed_and_checked() -> None:
    world = with_tablets()
    assert world.apply(CreateTable("music.songs", TableOptions(min_tablet_count=20))) is None
    assert len(world.image.ring.placements[table(world).placement]) == 32
    assert world.apply(AlterTable("music.songs", TableOptions(max_tablet_count=64))) is None
    assert table(world).options == TableOptions(min_tablet_count=20, max_tablet_count=64)
    for wrong in (
        TableOptions(min_tablet_count=-1),
        TableOptions(min_tablet_count=2**31),
        TableOptions(expected_data_size_in_gb=2**40),
        TableOptions(min_tablet_count=9, max_tablet_count=8),
    ):
        assert code_of(world.apply(AlterTable("music.songs", wrong))) == "bad_table_options"


def move(**other: object) -> MoveTablets:
    asked = {"table": "music.songs", "tablet": 0, "from_node": "a1", "to_node": "b1", **other}
    return MoveTablets((TabletMove(**asked),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (CreateKeyspace("with.dot", {"dc1": 1}), "bad_name"),
        (CreateKeyspace("k", {"dc1": 1}, initial_tablets=4), "bad_tablets"),
        (CreateKeyspace("k", {"dc1": 1}, tablets=True, initial_tablets=-1), "bad_tablets"),
        (CreateKeyspace("k", {"dc1": 1}, tablets=True, initial_tablets=2**31), "bad_tablets"),
        (CreateTable("nosuch.t"), "unknown_keyspace"),
        (CreateTable("music"), "bad_name"),
        (CreateTable("music.a.b"), "bad_name"),
        (AlterTable("music.nosuch", TableOptions()), "unknown_table"),
        (DropTable("music.nosuch"), "unknown_table"),
        (Truncate("music"), "keyspace_with_tablets"),
        (KeyspaceRfChange("music", {"dc1": 9}), "too_few_nodes"),
        (MoveTablets(()), "no_moves"),
        (MoveTablets(move().moves * (MAX_MOVES + 1)), "too_many_moves"),
        (move(table="music.nosuch"), "unknown_table"),
        (move(tablet=8), "unknown_tablet"),
        (move(tablet=-1), "unknown_tablet"),
        (move(to_node="nosuch"), "unknown_node"),
        (move(from_node="nosuch"), "other_replicas"),
        (move(table="library.books"), "no_tablets"),
    ],
)
def test_invalid_table_command_is_refused(command: AnyCommand, expected: str) -> None:
    world = with_tablets(rf=3)
    for name in ("music.songs", "library.books"):
        assert world.apply(CreateTable(name)) is None
    assert code_of(world.apply(command)) == expected
    assert code_of(world.apply(move(to_node="b1"))) == "other_replicas", "all three have it already"


def test_moving_tablet_cannot_be_moved_again() -> None:
    world = with_tablets()
    assert world.apply(CreateTable("music.songs")) is None
    row = world.image.ring.placements[table(world).placement].rows[0]
    (free,) = {"a1", "b1", "c1"} - {*row.reads}
    one, other = (move(from_node=node, to_node=free) for node in row.reads)
    assert world.apply(one) is None
    assert code_of(world.apply(other)) == "tablet_moves"
    assert code_of(world.apply(one)) == "tablet_moves"
    world.run()
    assert free in world.image.ring.placements[table(world).placement].rows[0].reads


def test_tablet_does_not_move_to_a_node_before_its_cleanup() -> None:
    """The node may have had the tablet before: its old rows would count again (INV-TABL-1)."""
    world = with_table("a1 b1 c1", 8)
    world.add("d1")
    world.run()
    table = world.image.schema.standing_map_owner(TABLE)
    assert table is not None
    move = TabletMove(
        table=TABLE, tablet=0, from_node=tablets(world)[0].reads[0], to_node="d1", to_shard=0
    )
    assert check_move(world.image, table, move) is None
    assert {each.move.to_node for each in proposal(world.image).moves} == {"d1"}
    marked = msgspec.structs.replace(world.image.membership.nodes["d1"], cleanup_since=7)
    image = apply_facts(world.image, [NodeChanged(marked)])
    assert code_of(check_move(image, table, move)) == "cleanup_pending"
    assert not proposal(image).moves
