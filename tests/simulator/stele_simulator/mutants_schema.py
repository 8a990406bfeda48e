"""Known bugs of decisions on the schema: objects in use, names, column ids, versions and batches."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from stele.domain import registry
from stele.domain.base import Rejected
from stele.domain.context import Context, Decision
from stele.domain.ddl import alter, alter_tables, alter_types, tables
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import Keyspace, SchemaImage, Table, TableSchemaChanged
from stele.domain.model.schema_objects import (
    Column,
    CqlType,
    TableSchema,
    TypeField,
    parse_argument,
    parse_type,
)
from stele.domain.rules import schema as checks
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted


def _decide(patch: Patch, kind: type[c.SchemaChange], decide: Any) -> None:
    patch.item(alter.DECIDED_BY, kind, decide)


@planted(STORY, rule="S1")
def types_in_use_are_dropped(patch: Patch) -> None:
    """DROP TYPE does not look at the tables that use the type."""

    def nobody(schema: SchemaImage, keyspace_id: str, names: frozenset[str]) -> list[Any]:
        return []

    patch.attribute(alter_types, "tables_using", nobody)


@planted(STORY, rule="S1")
def unknown_types_are_accepted(patch: Patch) -> None:
    """CREATE TABLE does not look whether a type was dropped meanwhile."""

    def unresolved(
        schema: SchemaImage, keyspace: Keyspace, text: str, *, argument: bool
    ) -> CqlType:
        return (parse_argument if argument else parse_type)(text, keyspace.name)

    patch.function(checks._resolved, unresolved)


@planted(STORY, rule="S1")
def functions_in_use_are_dropped(patch: Patch) -> None:
    """DROP FUNCTION does not look at the aggregates of the function."""

    def nobody(schema: SchemaImage, function_id: str) -> list[Any]:
        return []

    patch.function(checks.aggregates_using_function, nobody)


@planted(STORY, rule="S6")
def tables_with_views_are_dropped(patch: Patch) -> None:
    """DROP TABLE does not look at the materialized views of the table."""

    def none(image: Image, table: Table) -> None:
        return None

    patch.function(checks.check_no_views, none)


@planted(STORY, rule="S6")
def tables_being_dropped_are_changed(patch: Patch) -> None:
    """ALTER TABLE and CREATE MATERIALIZED VIEW accept a table whose drop was accepted."""

    def known(image: Image, name: str, drops: object = None) -> Table:
        found = image.schema.table_named(name)
        assert found is not None
        return found

    patch.attribute(alter_tables, "standing_table", known)


@planted(STORY, rule="S2")
def two_tables_have_one_name(patch: Patch) -> None:
    """CREATE TABLE does not look whether another writer was first."""

    def free(image: Image, name: str) -> None:
        return None

    patch.function(tables._check_name, free)


@planted(STORY, rule="S2")
def renamed_columns_share_a_name(patch: Patch) -> None:
    """RENAME does not look at the other columns."""

    def renamed(
        image: Image, name: str, table: Table, schema: TableSchema, old: str, new: str
    ) -> TableSchema:
        column = schema.column(old)
        assert column is not None
        return alter_tables._replaced(schema, replace(column, name=new))

    def unchecked(name: str, columns: Sequence[Column]) -> None:
        return None

    patch.function(alter_tables._renamed, renamed)
    patch.attribute(alter_tables, "check_columns", unchecked)


@planted(STORY, rule="S2")
def renamed_fields_share_a_name(patch: Patch) -> None:
    """ALTER TYPE RENAME does not look at the other fields."""

    def renamed(change: c.TypeAlteration, fields: tuple[TypeField, ...]) -> tuple[TypeField, ...]:
        return tuple(replace(f, name=change.rename.get(f.name, f.name)) for f in fields)

    def unchecked(name: str, fields: tuple[TypeField, ...]) -> None:
        return None

    patch.function(alter_types._renamed, renamed)
    patch.function(alter_types._check_fields, unchecked)


@planted(STORY, rule="S3")
def column_ids_are_counted_anew(patch: Patch) -> None:
    """A new column gets the number of columns as its id, so that the id of a dropped one comes again."""
    plain = checks.new_columns

    def counted(
        image: Image, keyspace: Keyspace, given: Iterable[c.ColumnDefinition], first_id: int = 1
    ) -> list[Column]:
        return plain(image, keyspace, given, first_id if first_id == 1 else first_id - 1)

    patch.attribute(alter_tables, "new_columns", counted)


@planted(STORY, rule="S3")
def added_columns_share_an_id(patch: Patch) -> None:
    """Two columns that one statement adds get the same id."""
    plain = checks.new_columns

    def once(
        image: Image, keyspace: Keyspace, given: Iterable[c.ColumnDefinition], first_id: int = 1
    ) -> list[Column]:
        found = plain(image, keyspace, given, first_id)
        return [replace(each, column_id=first_id) for each in found] if first_id > 1 else found

    patch.attribute(alter_tables, "new_columns", once)


@planted(STORY, rule="S3")
def dropped_columns_are_forgotten(patch: Patch) -> None:
    """DROP does not remember the column, so that old values look like new ones."""
    plain = alter_tables._without

    def forgotten(
        context: Context, change: c.TableAlteration, table: Table, schema: TableSchema, name: str
    ) -> TableSchema:
        after = plain(context, change, table, schema, name)
        return replace(after, dropped_columns=schema.dropped_columns)

    patch.function(alter_tables._without, forgotten)


@planted(STORY, rule="S4")
def types_change_without_their_tables(patch: Patch) -> None:
    """ALTER TYPE gives no new version to the tables that use the type."""
    plain = alter_types.alter_type

    def alone(context: Context, change: c.TypeAlteration) -> Iterable[AnyFact]:
        facts = plain(context, change)
        return [fact for fact in facts if not isinstance(fact, TableSchemaChanged)]

    _decide(patch, c.TypeAlteration, alone)


@planted(STORY, rule="S4")
def types_inside_types_are_not_followed(patch: Patch) -> None:
    """ALTER TYPE gives a new version to the tables that name the type, and not to users of its users."""

    def none(schema: SchemaImage, changed: object) -> list[Any]:
        return []

    patch.attribute(alter_types, "types_affected", none)


@planted(STORY, rule="S4")
def altered_tables_keep_their_version(patch: Patch) -> None:
    """ALTER TABLE leaves the version as it is, so that nodes do not notice that their columns are older."""
    plain = alter_tables._altered

    def same(
        context: Context, change: c.TableAlteration, table: Table, before: TableSchema
    ) -> Iterable[AnyFact]:
        for fact in plain(context, change, table, before):
            assert isinstance(fact, TableSchemaChanged)
            yield TableSchemaChanged(replace(fact.schema, version=before.version))

    patch.function(plain, same)


@planted(STORY, rule="S5")
def batches_stop_half_way(patch: Patch) -> None:
    """A batch whose later change is refused keeps its earlier ones."""

    def half(context: Context, command: c.AlterSchema) -> Decision:
        step, facts = context, list[AnyFact]()
        for number, change in enumerate(command.changes, 1):
            try:
                made = tuple(alter.DECIDED_BY[type(change)](step, change))
            except Rejected as refused:
                if not facts:
                    return refused.rejection
                break
            facts += made
            step = alter._after(step, made, number)
        return tuple(alter._last_rows(facts))

    patch.item(registry.DECISIONS, c.AlterSchema, half)


@planted(STORY, rule="S5")
def changes_of_a_batch_do_not_see_each_other(patch: Patch) -> None:
    """Each change of a batch is decided on the state before the batch."""

    def before(step: Context, made: tuple[AnyFact, ...], number: int) -> Context:
        return step

    patch.function(alter._after, before)


@planted(STORY, rule="S1")
def views_keep_the_old_names(patch: Patch) -> None:
    """RENAME gives the column another name in the table, and not in its views."""

    def none(
        context: Context, table: Table, before: TableSchema, after: TableSchema
    ) -> Iterable[AnyFact]:
        return ()

    patch.function(alter_tables._views_altered, none)
