"""Known bugs of rows with columns: merges, values of dropped columns, refusals, and versions of tables."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stele.agent.judging import Judge, JudgedRequest
from stele.domain.image import Image
from stele.domain.model.schema_objects import CqlType, TypeField
from stele.node import cells, coordinate, cql_values, store, table_rows
from stele.node import http as node_http
from stele.node.cells import Cell, StoredCell, content_of
from stele.node.coordinate import Coordination, _check_member, _check_serving
from stele.node.table_rows import DataPath, TableRows
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted


@planted(STORY, rule="C1")
def newer_row_wins_whole(patch: Patch) -> None:
    """A merge keeps the newer version of a row, so that columns that only the other has are lost."""

    def newer(one: Cell, other: Cell) -> Cell:
        return max(one, other, key=lambda cell: cell.timestamp)

    patch.function(cells.merged, newer)


@planted(STORY, rule="C1")
def replicas_overwrite_rows(patch: Patch) -> None:
    """A replica stores the columns of a write, and forgets the others of the row."""

    def overwritten(writer: Any, row: StoredCell) -> StoredCell:
        return row

    patch.function(store._merged_with_stored, overwritten)


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

    def none(self: Judge, request: JudgedRequest) -> int:
        return 0

    patch.attribute(Judge, "newer_table_version", none)


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
