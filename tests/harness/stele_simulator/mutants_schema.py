"""Known bugs of the schema: keyspaces, tables, columns and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stele.agent.judging import Judge, JudgedRequest
from stele.coordinator import openings
from stele.domain import registry
from stele.domain.base import Rejected
from stele.domain.context import Context, Decision
from stele.domain.ddl import alter, alter_tables, alter_types, tables
from stele.domain.ddl import keyspaces as schema_decisions
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import (
    Keyspace,
    KeyspaceChanged,
    SchemaImage,
    Table,
    TableSchemaChanged,
)
from stele.domain.model.schema_objects import (
    Column,
    CqlType,
    TableSchema,
    TypeField,
    parse_argument,
    parse_type,
)
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind
from stele.domain.ring import transition
from stele.domain.ring.transition import TransitionRow
from stele.domain.rules import schema as checks
from stele.domain.topology import planning
from stele.domain.topology.operations.replication import to_shared_placement
from stele.domain.topology.planning import Locks, locks, moving_placements, needs
from stele.node import cells, coordinate, cql_values, store, table_rows
from stele.node import http as node_http
from stele.node.cells import Cell, content_of
from stele.node.coordinate import Coordination, _check_member, _check_serving
from stele.node.table_rows import DataPath, TableRows
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

# Known bugs of decisions on the schema: objects in use, names, column ids, versions and batches.


def _decide(patch: Patch, kind: type[c.SchemaChange], decide: Any) -> None:
    patch.item(alter.DECIDED_BY, kind, decide)


@planted(STORY, rule="S1")
def types_in_use_are_dropped(patch: Patch) -> None:
    """DROP TYPE does not look at the tables that use the type."""
    patch.attribute(alter_types, "tables_using", lambda schema, keyspace_id, names: [])


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
    patch.function(checks.aggregates_using_function, lambda schema, function_id: [])


@planted(STORY, rule="S6")
def tables_with_views_are_dropped(patch: Patch) -> None:
    """DROP TABLE does not look at the materialized views of the table."""
    patch.function(checks.check_no_views, lambda image, table: None)


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
    patch.function(tables._check_name, lambda image, name: None)


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
    patch.attribute(alter_types, "types_affected", lambda schema, changed: [])


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
    patch.function(alter._after, lambda step, made, number: step)


@planted(STORY, rule="S1")
def views_keep_the_old_names(patch: Patch) -> None:
    """RENAME gives the column another name in the table, and not in its views."""
    patch.function(alter_tables._views_altered, lambda context, table, before, after: ())


# Known bugs about changes of replication: who needs which data, whose quorums count, and what is
# fenced.


def _change(patch: Patch, **parts: Any) -> None:
    change_operation(patch, RequestKind.KEYSPACE_RF_CHANGE, **parts)


@planted(RUN, rule="I5")
def who_stays_is_given_nothing(patch: Patch) -> None:
    """When replicas are removed, the others pull nothing, although they may lack acknowledged writes."""
    patch.attribute(TransitionRow, "receiving", TransitionRow.coming)


@planted(STORY)
def shrinking_needs_no_quorum_of_those_left(patch: Patch) -> None:
    """While a range only loses replicas, a write needs no quorum on the other side."""
    plain = transition._moving

    def one_sided(row: TransitionRow, *, to_new: bool) -> Any:
        read, written, asked, *shards = plain(row, to_new=to_new)
        return read, written, () if {*row.new} < {*row.old} else asked, *shards

    patch.attribute(transition, "_moving", one_sided)


@planted(STORY, rule="I3")
def change_of_placement_is_not_fenced(patch: Patch) -> None:
    """The shared placement's versions alone say who is stale, and they know nothing of the change."""

    def plain(image: Image, done: Transition, replication: dict[str, int]) -> Iterable[Any]:
        for fact in to_shared_placement(image, done, replication):
            if isinstance(fact, KeyspaceChanged):
                was = image.schema.by_id[fact.keyspace.keyspace_id].placed_version
                yield KeyspaceChanged(replace(fact.keyspace, placed_version=was))
            else:
                yield fact

    def on_done(image: Image, done: Transition, epoch: int) -> Iterable[Any]:
        return plain(image, done, image.requests.requests[done.transition_id].replication)

    _change(patch, on_done=on_done)


@planted(STORY, rule="I7")
def undone_change_counts_as_done(patch: Patch) -> None:
    """A change that was cancelled gives the keyspace the replication that was asked for."""

    def on_undone(image: Image, undone: Transition) -> Iterable[Any]:
        wanted = image.requests.requests[undone.transition_id].replication
        return to_shared_placement(image, undone, wanted)

    _change(patch, on_undone=on_undone)


@planted(STORY)
def ring_moves_while_replication_changes(patch: Patch) -> None:
    """Nodes come and go beside a change of replication, whose plan is of the ring without them."""
    patch.function(moving_placements, lambda image: frozenset[str]())
    patch.function(needs, lambda image, planned: locks(planned))
    patch.attribute(planning, "_changes_tokens", lambda transition: False)
    patch.attribute(planning, "_check_outcome", lambda image, later, planned: None)


@planted(STORY)
def changes_of_replication_overtake_nodes(patch: Patch) -> None:
    """A waiting request blocks those that change the same ranges, but not those that it waits for."""

    first_conflict = openings._Queue.first_conflict

    def same_ranges(earlier: Any, mine: Locks, want: Locks) -> str:
        queue = openings._Queue()
        queue._request_ids, queue._locks = earlier._request_ids, earlier._locks
        return first_conflict(queue, {}, mine)

    patch.attribute(openings._Queue, "first_conflict", same_ranges)


@planted(STORY, rule="I7")
def keyspaces_are_made_on_the_dead(patch: Patch) -> None:
    """A new keyspace gets ranges without live replicas, which also block the removal of the dead node."""
    patch.attribute(schema_decisions, "_check_can_be_written", lambda image, placement: None)


# Known bugs of rows with columns: merges, values of dropped columns, refusals, and versions of
# tables.


@planted(STORY, rule="C1")
def newer_row_wins_whole(patch: Patch) -> None:
    """A merge keeps the newer version of a row, so that columns that only the other has are lost."""

    def newer(one: Cell, other: Cell) -> Cell:
        return max(one, other, key=lambda cell: cell.timestamp)

    patch.function(cells.merged, newer)


@planted(STORY, rule="C1")
def replicas_overwrite_rows(patch: Patch) -> None:
    """A replica stores the columns of a write, and forgets the others of the row."""
    patch.function(store._merged_with_stored, lambda writer, row: row)


@planted(STORY, rule="C1")
def reads_take_one_replicas_columns(patch: Patch) -> None:
    """A read returns the row of the replica with the newest write, without the columns of the others."""

    def one(found: list[Cell]) -> Cell:
        return max(found, key=lambda cell: cell.timestamp)

    patch.attribute(coordinate, "newest", one)


@planted(STORY, rule="C1")
def dropped_values_come_back(patch: Patch) -> None:
    """A column that is added again shows the values of the dropped column of its name."""
    plain = TableRows.document

    def by_name(self: TableRows, path: DataPath, cell: Cell | None) -> bytes | None:
        if cell is not None:
            schema, content = self._schema, content_of(cell.value)
            names = {each.column_id: each.name for each in schema.dropped_columns}
            now = {each.name: each.column_id for each in schema.columns}
            found = {each.column_id: each for each in content.columns}
            for column_id, name in names.items():
                if name in now and column_id in found and now[name] not in found:
                    found[now[name]] = found[column_id]._replace(column_id=now[name])
            cell = cells.row_cell(content.deleted_us, found.values())
        return plain(self, path, cell)

    patch.attribute(TableRows, "document", by_name)


@planted(STORY, rule="C2")
def unknown_columns_are_left_out(patch: Patch) -> None:
    """A write of a column that does not exist is acknowledged without it."""
    plain = TableRows._object

    def known(self: TableRows, body: bytes) -> dict[str, object]:
        found = plain(self, body)
        return {name: each for name, each in found.items() if self._schema.column(name)}

    patch.attribute(TableRows, "_object", known)


@planted(STORY, rule="C2")
def wrong_types_are_stored(patch: Patch) -> None:
    """A value of another type is stored as zero."""
    plain = cql_values.encode_value

    def lenient(type_: CqlType, value: object, fields_of: Any) -> bytes:
        try:
            return plain(type_, value, fields_of)
        except cql_values.ValueMismatch:
            return bytes(4)

    patch.attribute(table_rows, "encode_value", lenient)


@planted(STORY, rule="C2")
def old_fields_of_types_are_used(patch: Patch) -> None:
    """A node keeps the fields that a type had when it first used it."""
    plain, kept = TableRows._fields_of, dict[str, Sequence[TypeField]]()

    def first(self: TableRows, name: str) -> Sequence[TypeField]:
        return kept.setdefault(name, plain(self, name))

    patch.attribute(TableRows, "_fields_of", first)


@planted(STORY, rule="C2")
def nodes_refuse_before_they_read_the_log(patch: Patch) -> None:
    """A node refuses a column that it does not know, although the log has it."""

    async def at_once(
        self: Coordination, name: str, make: Callable[[Image], Any], until: float, at_least: int
    ) -> tuple[Image, Any]:
        if at_least > self._follower.image.epoch:
            await self._read_up_to(at_least, until)
        image = self._follower.image
        _check_member(image, self._node_id)
        if at_least > image.epoch:
            raise coordinate._behind(image, at_least)
        _check_serving(image, name)
        return image, make(image)

    patch.attribute(Coordination, "_made", at_once)


@planted(STORY, rule="C2")
def dropped_columns_are_shown(patch: Patch) -> None:
    """A read shows the values of dropped columns too."""
    plain = TableRows.document

    def with_dropped(self: TableRows, path: DataPath, cell: Cell | None) -> bytes | None:
        shown = plain(self, path, cell)
        if shown is None:
            return None
        gone = {each.name: None for each in self._schema.dropped_columns}
        return msgspec.json.encode({**gone, **msgspec.json.decode(shown)})

    patch.attribute(TableRows, "document", with_dropped)


@planted(STORY, rule="C3")
def versions_of_clients_are_ignored(patch: Patch) -> None:
    """A node serves a client by older columns than the version that the client names."""
    patch.attribute(node_http, "table_version_of", lambda headers: 0)


@planted(STORY, rule="C3")
def replicas_do_not_mention_newer_columns(patch: Patch) -> None:
    """A replica serves a sender with older columns, and does not answer that there are newer ones."""
    patch.attribute(Judge, "newer_table_version", lambda self, request: 0)


@planted(STORY, rule="C3")
def senders_do_not_read_newer_columns(patch: Patch) -> None:
    """A node that learns of newer columns continues with its own, without reading the log."""

    async def nothing(self: Coordination, epoch: int, until: float) -> None:
        return None

    patch.attribute(Coordination, "_read_up_to", nothing)


@planted(STORY, rule="C3")
def replicas_serve_newer_columns_unread(patch: Patch) -> None:
    """A replica serves a sender with newer columns without reading the log, so that it forgets them."""

    def by_versions_alone(self: Judge, request: JudgedRequest) -> bool:
        image = self._follower.image
        if request.version > image.topology.version:
            return True
        return request.epoch > image.epoch and image.schema.of_data(request.data_id) is None

    patch.attribute(Judge, "_is_newer", by_versions_alone)
