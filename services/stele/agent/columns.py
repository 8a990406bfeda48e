"""Changes of the columns of tables, reported after each epoch."""

from collections.abc import Callable
from typing import Any

import msgspec

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.model.schema import TableDropped, TableSchemaChanged
from stele.domain.model.schema_objects import Column, TableSchema
from stele.log.follower import LogFollower
from stele.runtime.http import HttpError


class ColumnsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one table's schema in one epoch.

    ``before`` is None for a table that is new to the store, ``after`` for one that was dropped. A
    column is identified by its id: a renamed column keeps it, and no other column ever gets it.
    """

    table: str
    epoch: int
    before: TableSchema | None
    after: TableSchema | None

    @property
    def added(self) -> tuple[Column, ...]:
        return _without(self.after, self.before)

    @property
    def dropped(self) -> tuple[Column, ...]:
        return _without(self.before, self.after)

    @property
    def renamed(self) -> dict[str, str]:
        """Return the new names by the old ones."""
        old = {column.column_id: column.name for column in _columns(self.before)}
        kept = (column for column in _columns(self.after) if column.column_id in old)
        pairs = ((old[column.column_id], column.name) for column in kept)
        return {before: after for before, after in pairs if before != after}


OnColumns = Callable[[ColumnsChanged], None]


def check_columns(schema: TableSchema, row: bytes) -> None:
    """Check that ``row`` is a JSON object whose names are columns of the table. Raises HttpError."""
    version = {"table_version": schema.version}
    try:
        names = msgspec.json.decode(row, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"The table has columns, and the row is not a JSON object: {error}."
        hint = "Send an object of columns."
        raise HttpError(400, "malformed_json", text, hint=hint, details=version) from error
    dropped = {column.name for column in schema.dropped_columns}
    for name in names:
        if schema.column(name) is None:
            shown = name[:128]
            raise HttpError(
                400,
                "dropped_column" if name in dropped else "unknown_column",
                f"Version {schema.version} of the table has no column {shown!r}.",
                hint="Read the log to this epoch, and send columns of that version.",
                details={"column": shown, **version},
            )


def watch_columns(follower: LogFollower, on_columns: OnColumns) -> None:
    """Call ``on_columns`` for each table with columns, and then for each change of one.

    Calls are made in the event loop, in the turn in which the epoch is applied.
    """
    image = follower.image
    for table_id in image.schema.schemas:
        on_columns(_change(None, image, table_id))

    def look(image: Image, delta: Delta) -> None:
        # One change for a table that several facts of an epoch change.
        changed = dict.fromkeys(
            fact.schema.table_id if isinstance(fact, TableSchemaChanged) else fact.table_id
            for fact in delta.facts()
            if isinstance(fact, TableSchemaChanged | TableDropped)
        )
        for table_id in changed:
            change = _change(delta.before, image, table_id)
            if change.before != change.after:
                on_columns(change)

    follower.listen(look)


def _change(before: Image | None, after: Image, table_id: str) -> ColumnsChanged:
    named = next(
        image for image in (after, before) if image is not None and table_id in image.schema.tables
    )
    return ColumnsChanged(
        table=named.schema.full_name(named.schema.tables[table_id]),
        epoch=after.epoch,
        before=None if before is None else before.schema.schemas.get(table_id),
        after=after.schema.schemas.get(table_id),
    )


def _columns(schema: TableSchema | None) -> tuple[Column, ...]:
    return () if schema is None else schema.columns


def _without(these: TableSchema | None, those: TableSchema | None) -> tuple[Column, ...]:
    ids = {column.column_id for column in _columns(those)}
    return tuple(column for column in _columns(these) if column.column_id not in ids)
