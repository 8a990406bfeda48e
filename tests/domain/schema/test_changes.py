"""Applied schema changes: their rows, batches, versions and snapshots."""

import random
from collections.abc import Iterator

import pytest

from stele.domain.commands import AlterSchema, Cancel, CreateTable, DropKeyspace
from stele.domain.evolve import apply_facts
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import CreateKeyspace, TableSchemaChanged
from stele.domain.model.schema_objects import (
    ClusteringOrder,
    ColumnKind,
    IndexTarget,
    SchemaVersion,
    TableSchema,
    TypeField,
)
from stele.domain.snapshot import facts_to_image, image_to_facts, state_hash
from stele.domain.soundness import flaws_of
from stele.log.codec import decode_epoch, encode_epoch
from tests.domain.epochs import code_of
from tests.domain.history import World
from tests.domain.schema.examples import (
    CK,
    STATIC,
    alter,
    cluster,
    column,
    function,
    schema_of,
    table,
    user_type,
)


def names(schema: TableSchema) -> list[str]:
    return [each.name for each in schema.columns]


def altered(world: World, *changes: c.AnyChange) -> Image:
    refused = alter(world, *changes)
    assert refused is None, refused
    return world.image


def version(world: World, name: str) -> int:
    return schema_of(world.image, name).version


# Columns.


def test_columns_are_sorted_by_kind_and_types_are_canonical() -> None:
    world = cluster()
    image = altered(
        world,
        user_type("address", street="varchar"),
        table(
            "t",
            column("r", "FROZEN<map<int, list<address>>>"),
            column("s", "tuple<int, set<text>>", STATIC),
            column("v", "vector<float, 3>"),
            column("c", "Int", CK),
        ),
    )
    schema = schema_of(image, "t")
    assert [(each.name, each.type, each.kind.value) for each in schema.columns] == [
        ("id", "uuid", "partition_key"),
        ("c", "int", "clustering"),
        ("s", "frozen<tuple<int, frozen<set<text>>>>", "static"),
        ("r", "frozen<map<int, frozen<list<frozen<address>>>>>", "regular"),
        ("v", "vector<float, 3>", "regular"),
    ]
    assert image.schema.types[image.schema.type_ids["library.address"]].fields == (
        TypeField("street", "text"),
    )


def test_renamed_column_keeps_its_id_and_a_readded_column_gets_a_new_one() -> None:
    world = cluster()
    altered(world, table("t", column("a", "int"), column("b", "text")))
    before = schema_of(world.image, "t")
    altered(
        world,
        c.TableAlteration(name="library.t", drop=("a",), rename={"id": "key"}),
        c.TableAlteration(name="library.t", add=(column("a", "varint"),)),
    )
    after = schema_of(world.image, "t")
    assert names(after) == ["key", "b", "a"]
    assert after.column_by_id(before.columns[0].column_id).name == "key"
    assert {each.column_id for each in before.columns}.isdisjoint({after.columns[-1].column_id})
    (dropped,) = after.dropped_columns
    assert (dropped.name, dropped.type, dropped.dropped_epoch) == ("a", "int", world.image.epoch)
    assert dropped.dropped_us >= 1000 * world.history.at_ms


def test_dropped_column_releases_its_type() -> None:
    world = cluster()
    altered(world, user_type("address", street="text"), table("t", column("a", "address")))
    altered(
        world,
        c.TableAlteration(name="library.t", drop=("a",)),
        c.TypeRemoval(name="library.address"),
        user_type("address", street="text"),
        c.TableAlteration(name="library.t", add=(column("a", "address"),)),
    )
    (dropped,) = schema_of(world.image, "t").dropped_columns
    assert dropped.type == "frozen<tuple<text>>"


def test_parameters_are_set_kept_and_reset() -> None:
    world = cluster()
    altered(
        world,
        table(
            "t",
            parameters={"comment": "songs", "cdc": "true", "compaction": "{'class' : 'X', 'a':1}"},
        ),
    )
    given = {"comment": "", "gc_grace_seconds": "007"}
    altered(world, c.TableAlteration(name="library.t", parameters=given))
    assert schema_of(world.image, "t").parameters == {
        "cdc": "{'enabled': 'true'}",
        "compaction": "{'a': '1', 'class': 'X'}",
        "gc_grace_seconds": "7",
    }


def test_change_without_effect_makes_no_new_version() -> None:
    world = cluster()
    altered(world, table("t", column("a", "int")), user_type("y", a="int"))
    before = world.image.schema
    altered(
        world,
        c.TableAlteration(name="library.t", types={"a": "int"}),
        c.TypeAlteration(name="library.y", types={"a": "int"}),
    )
    assert world.image.schema == before


# Types, functions, aggregates, indexes and views.


def test_changed_type_gives_all_users_a_new_version() -> None:
    world = cluster()
    altered(
        world,
        user_type("street", name="text"),
        user_type("address", street="frozen<street>"),
        table("direct", column("a", "street")),
        table("nested", column("a", "frozen<list<address>>")),
        table("other", column("a", "int")),
    )
    first = world.image.epoch
    change = c.TypeAlteration(
        name="library.street", add=(TypeField("number", "int"),), rename={"name": "title"}
    )
    image = altered(world, change)
    assert (version(world, "direct"), version(world, "nested")) == (image.epoch, image.epoch)
    assert version(world, "other") == first
    changed, user = (
        image.schema.type_named("library.street"),
        image.schema.type_named("library.address"),
    )
    assert changed is not None and user is not None
    assert (changed.version, user.version) == (image.epoch, image.epoch)
    assert changed.fields == (TypeField("title", "text"), TypeField("number", "int"))


def test_replaced_function_keeps_its_id_and_its_aggregates() -> None:
    world = cluster()
    total = c.AggregateCreation(
        name="library.total",
        argument_types=("int",),
        state_function="library.plus",
        state_type="int",
        initial_condition="0",
    )
    altered(world, function("plus", "int", "int", "int"), total)
    (before,) = world.image.schema.functions.values()
    again = function("plus", "int", "int", "int")
    altered(world, c.FunctionCreation(**{**fields(again), "body": "x", "or_replace": True}))  # type: ignore[arg-type]
    (after,) = world.image.schema.functions.values()
    (aggregate,) = world.image.schema.aggregates.values()
    assert (after.function_id, after.body, after.version) == (
        before.function_id,
        "x",
        world.image.epoch,
    )
    assert aggregate.state_function_id == after.function_id
    image = altered(
        world, c.AggregateRemoval(name="library.total"), c.FunctionRemoval(name="library.plus")
    )
    assert not (image.schema.functions or image.schema.aggregates or image.schema.routine_ids)


def fields(change: c.FunctionCreation) -> dict[str, object]:
    return {name: getattr(change, name) for name in change.__struct_fields__}


def test_index_gives_its_table_a_new_version_and_a_default_name() -> None:
    world = cluster()
    altered(world, table("t", column("a", "map<text, int>")))
    for target in (IndexTarget.SIMPLE, IndexTarget.KEYS):
        altered(world, c.IndexCreation(table="library.t", column="a", target=target))
    schema = schema_of(world.image, "t")
    assert [(each.name, each.target.value) for each in schema.indexes] == [
        ("t_a_idx", "values"),
        ("t_a_idx_1", "keys"),
    ]
    assert schema.version == world.image.epoch
    altered(world, c.IndexRemoval(name="library.t_a_idx"))
    assert [*world.image.schema.index_tables] == ["library.t_a_idx_1"]


def songs_by_artist(**others: object) -> c.ViewCreation:
    return c.ViewCreation(
        name="library.by_artist",
        base="library.songs",
        partition_key=("artist",),
        clustering=(c.ViewKey("id", ClusteringOrder.DESC),),
        where=(c.ViewCondition("artist"), c.ViewCondition("id")),
        **others,  # type: ignore[arg-type]
    )


def test_view_of_all_columns_follows_its_base_table() -> None:
    world = cluster()
    songs = table("songs", column("artist", "text"), column("year", "int"))
    altered(world, songs, songs_by_artist())
    altered(
        world,
        c.TableAlteration(
            name="library.songs", add=(column("label", "text"),), rename={"id": "song"}
        ),
    )
    view, base = schema_of(world.image, "by_artist"), schema_of(world.image, "songs")
    assert names(view) == ["artist", "song", "year", "label"]
    assert {each.column_id for each in view.columns} == {each.column_id for each in base.columns}
    assert [each.kind for each in view.columns[:2]] == [ColumnKind.PARTITION_KEY, CK]
    assert view.version == base.version == world.image.epoch
    assert [each.name for each in world.image.schema.views_of(base.table_id)] == ["by_artist"]


def test_view_of_named_columns_gets_no_new_columns() -> None:
    world = cluster()
    songs = table("songs", column("artist", "text"), column("year", "int"))
    altered(world, songs, songs_by_artist(columns=("artist",)))
    altered(world, c.TableAlteration(name="library.songs", add=(column("label", "text"),)))
    assert names(schema_of(world.image, "by_artist")) == ["artist", "id"]


def test_view_has_its_own_tablet_map_in_a_keyspace_with_tablets() -> None:
    world = cluster()
    altered(
        world,
        c.KeyspaceCreation(name="music", replication={"dc1": 3}, tablets=True),
        c.TableCreation(
            name="music.songs",
            columns=(column("id", "uuid", ColumnKind.PARTITION_KEY), column("artist", "text")),
        ),
        c.ViewCreation(
            name="music.by_artist",
            base="music.songs",
            partition_key=("artist",),
            clustering=(c.ViewKey("id"),),
            where=(c.ViewCondition("artist"), c.ViewCondition("id")),
        ),
    )
    tables = world.image.schema.with_tablets()
    assert len({each.placement for each in tables}) == 2
    assert all(each.placement in world.image.ring.placements for each in tables)


# Batches.


def test_batch_is_one_epoch_and_a_rejected_change_cancels_all_of_it() -> None:
    world = cluster()
    epoch = world.image.epoch
    altered(world, *(table(f"t{n}", column("a", "int")) for n in range(50)))
    assert world.image.epoch == epoch + 1
    assert len(world.image.schema.schemas) == 50
    before = world.image
    refused = alter(world, table("new"), user_type("y", a="int"), table("t7"))
    assert refused is not None
    assert (refused.code, refused.details["change"]) == ("table_exists", "3")
    assert refused.message.startswith("Change 3 of 3 (create_table library.t7): ")
    assert world.image is before


def test_batch_writes_one_schema_row_per_table() -> None:
    world = cluster()
    index = c.IndexCreation(table="library.t", column="a")
    more = c.TableAlteration(name="library.t", add=(column("b", "int"),))
    altered(world, table("t", column("a", "int")), index, more)
    facts = [each for each in world.epochs[-1].facts if isinstance(each, TableSchemaChanged)]
    assert [each.schema for each in facts] == [schema_of(world.image, "t")]


def test_batch_for_another_schema_version_is_rejected() -> None:
    world = cluster()
    altered(world, table("t"))
    seen = world.image.schema.version.epoch
    altered(world, table("u"))
    late = world.history.apply(AlterSchema((table("v"),), schema_version=seen))
    assert late is not None and late.code == "schema_changed"
    now = world.image.schema.version.epoch
    assert world.history.apply(AlterSchema((table("v"),), schema_version=now)) is None


def test_batch_size_is_limited() -> None:
    world = cluster()
    refused = world.history.apply(AlterSchema((table("t", if_not_exists=True),) * 10_001))
    assert refused is not None and refused.code == "too_many_changes"


def test_drops_of_a_batch_are_separate_requests() -> None:
    world = cluster()
    altered(world, table("a"), table("b"))
    altered(world, c.TableRemoval(name="library.a"), c.TableRemoval(name="library.b"))
    requests = [r for r in world.image.requests.requests.values() if r.drops]
    assert len({request.request_id for request in requests}) == 2
    assert code_of(alter(world, table("a"))) == "table_being_dropped"
    world.run()
    assert not world.image.schema.tables and not world.image.schema.schemas
    altered(world, table("a"))


def test_type_is_in_use_until_the_drop_of_its_table_is_done() -> None:
    world = cluster()
    altered(world, user_type("y", a="int"), table("t", column("a", "y")))
    altered(world, c.TableRemoval(name="library.t"))
    assert code_of(alter(world, c.TypeRemoval(name="library.y"))) == "type_in_use"
    world.run()
    altered(world, c.TypeRemoval(name="library.y"))


DROP_T = AlterSchema((c.TableRemoval(name="library.t"),))


def test_table_that_is_being_dropped_takes_no_changes() -> None:
    world = cluster()
    altered(world, table("t", column("a", "int")))
    assert world.apply(DROP_T, "drop-t") is None
    for change in (
        c.TableAlteration(name="library.t", add=(column("b", "int"),)),
        c.IndexCreation(table="library.t", column="a"),
        table("t", if_not_exists=True),
    ):
        assert code_of(alter(world, change)) == "table_being_dropped"
    assert world.apply(Cancel("drop-t")) is None
    altered(world, c.TableAlteration(name="library.t", add=(column("b", "int"),)))


def test_dropped_keyspace_removes_its_objects() -> None:
    world = cluster()
    altered(
        world,
        user_type("y", a="int"),
        table("t", column("a", "y"), column("b", "int")),
        c.IndexCreation(table="library.t", column="b", name="i"),
        function("plus", "int", "int", "int"),
        c.AggregateCreation(
            name="library.total",
            argument_types=("int",),
            state_function="plus",
            state_type="int",
        ),
    )
    assert world.apply(DropKeyspace("library")) is None
    assert code_of(alter(world, user_type("z", a="int"))) == "keyspace_being_dropped"
    world.run()
    schema = world.image.schema
    assert not (schema.types or schema.type_ids or schema.functions or schema.aggregates)
    assert not (schema.schemas or schema.routine_ids or schema.index_tables)


# Versions.


def test_schema_version_is_the_state_id_of_the_last_schema_change() -> None:
    world = cluster()
    altered(world, table("t"))
    stamped = SchemaVersion(world.image.epoch, world.image.state_id.hex())
    assert world.image.schema.version == stamped
    altered(world, table("t", if_not_exists=True))
    assert world.image.schema.version == stamped
    assert world.apply(CreateTable("library.opaque")) is None
    assert world.image.schema.version.epoch == world.image.epoch


def test_cluster_without_the_feature_has_no_schema_version() -> None:
    world = cluster()
    for image in world.images[:-1]:
        assert image.schema.version == SchemaVersion()


# Snapshots.


def random_changes(chance: random.Random) -> Iterator[tuple[c.AnyChange, ...]]:
    """Yield batches of changes of a few objects, many of them rejected."""
    tables, types = [f"t{n}" for n in range(4)], [f"y{n}" for n in range(3)]
    for number in range(120):
        name, kind = chance.choice(tables), chance.choice(types)
        new = f"c{chance.randrange(4)}"
        text = chance.choice(("int", "text", kind, f"frozen<list<{kind}>>", "map<int, text>"))
        choices: tuple[c.AnyChange, ...] = (
            table(name, column("a", text), column("b", "int", CK)),
            c.TableAlteration(name=f"library.{name}", add=(column(new, text),)),
            c.TableAlteration(name=f"library.{name}", drop=(new,)),
            c.TableAlteration(name=f"library.{name}", rename={"b": new}),
            c.TableRemoval(name=f"library.{name}"),
            user_type(kind, a="int"),
            c.TypeAlteration(name=f"library.{kind}", add=(TypeField(f"f{number}", "int"),)),
            c.TypeRemoval(name=f"library.{kind}"),
            function("f", "int", kind),
            c.FunctionRemoval(name="library.f", argument_types=(kind,)),
            c.IndexCreation(table=f"library.{name}", column=new),
            c.IndexRemoval(name=f"library.{name}_{new}_idx"),
            c.ViewCreation(
                name=f"library.v_{name}",
                base=f"library.{name}",
                partition_key=("b",),
                clustering=(c.ViewKey("id"),),
                where=(c.ViewCondition("b"), c.ViewCondition("id")),
            ),
            c.ViewRemoval(name=f"library.v_{name}"),
        )
        yield tuple(chance.choices(choices, k=chance.choice((1, 1, 1, 2, 3))))


@pytest.mark.parametrize("seed", range(4))
def test_every_image_equals_its_snapshot_and_the_fold_of_its_records(seed: int) -> None:
    world, chance = cluster(), random.Random(seed)
    applied = 0
    for batch in random_changes(chance):
        before = world.image
        refused = alter(world, *batch)
        applied += refused is None
        assert refused is None or world.image is before
        if chance.random() < 0.1:
            world.run()
    assert applied > 10
    for image in (*world.images[-100::10], world.image):
        again = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
        assert again.schema == image.schema
        assert state_hash(again) == state_hash(image)
        assert not [*flaws_of(image)]
    for before, epoch, after in zip(world.images, world.epochs, world.images[1:], strict=False):
        assert decode_epoch(encode_epoch(epoch)) == epoch
        folded = apply_facts(before, epoch.facts).schema
        assert folded.schemas == after.schema.schemas and folded.types == after.schema.types


def test_create_keyspace_command_changes_the_schema_version() -> None:
    world = cluster()
    assert world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True)) is None
    assert world.image.schema.version.epoch == world.image.epoch
