"""An override restores the columns, types, functions and aggregates of the other state."""

from stele.domain.commands import RestrictCommits
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema_objects import TypeField
from stele.domain.names import CommitMode
from tests.domain.overrides.overriding import ask, revert
from tests.domain.schema.examples import (
    alter,
    cluster,
    column,
    function,
    schema_of,
    table,
    user_type,
)


def reverted() -> tuple[Image, Image]:
    """Return the state to which a changed schema was reverted, and the state after that."""
    world = cluster()
    total = c.AggregateCreation(
        name="library.total", argument_types=("int",), state_function="plus", state_type="int"
    )
    by_a = c.ViewCreation(
        name="library.v",
        base="library.viewed",
        partition_key=("a",),
        clustering=(c.ViewKey("id"),),
        where=(c.ViewCondition("a"), c.ViewCondition("id")),
    )
    made = (
        *(user_type("y", a="int"), function("plus", "int", "int", "int"), total),
        *(table("same", column("a", "y")), table("altered", column("a", "int"))),
        *(table("viewed", column("a", "int")), by_a),
    )
    assert alter(world, *made) is None
    target = world.image
    changes = (
        c.TableAlteration(name="library.altered", drop=("a",), add=(column("b", "int"),)),
        c.TypeAlteration(name="library.y", add=(TypeField("b", "int"),)),
        c.AggregateRemoval(name="library.total"),
        *(user_type("new", a="int"), table("new", column("a", "new"))),
        c.ViewRemoval(name="library.v"),
    )
    assert alter(world, *changes) is None
    world.run()
    assert alter(world, c.TableRemoval(name="library.viewed")) is None
    world.run()
    assert ask(world.history, RestrictCommits(mode=CommitMode.FROZEN), "freeze") is None
    refused = revert(world.history, target)
    assert refused is None, refused
    return target, world.image


def test_reverted_state_has_the_older_columns_types_and_functions() -> None:
    target, after = reverted()
    before, schema = target.schema, after.schema
    assert {*schema.type_ids} == {*before.type_ids} == {"library.y"}
    assert {*schema.routine_ids} == {*before.routine_ids}
    assert {*schema.table_ids} == {*before.table_ids}
    for name in ("same", "altered", "viewed", "v"):
        assert schema_of(after, name).columns == schema_of(target, name).columns
    view = schema_of(after, "v").view
    assert view is not None and view.base_table_id == schema.table_ids["library.viewed"]


def test_reverted_object_has_a_new_version_and_reuses_no_column_id() -> None:
    target, after = reverted()
    assert schema_of(after, "altered").version == after.epoch
    assert after.schema.version.epoch == after.epoch
    assert schema_of(after, "altered").next_column_id > schema_of(target, "altered").next_column_id
