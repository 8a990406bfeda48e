"""Changes of schema objects, from the log alone: who changed what, when and why. Pure."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from stele.domain.base import Fact
from stele.domain.commands import COMMANDS
from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model import schema as m
from stele.domain.model.requests import Request
from stele.domain.model.schema import SchemaImage
from stele.placements.columns import NUMBER, TEXT, TIME, columns
from stele.placements.events import time_of
from stele.placements.fold import FoldError
from stele.words.cql import statement_of

SCHEMA: Final = pa.schema(
    columns(
        (TEXT, "cluster"),
        (NUMBER, "changed_epoch"),
        (TIME, "decided_at"),
        (TEXT, "object_kind object_id object_name change_kind cql_text"),
        (TEXT, "actor reason command request_id"),
    )
)
"""``change_kind`` is created, changed or dropped. ``cql_text`` creates the object as it is after the
change; it is null for a dropped one.
"""

KEYSPACE: Final = "keyspace"
TABLE: Final = "table"
TYPE: Final = "type"
FUNCTION: Final = "function"
AGGREGATE: Final = "aggregate"

_OF_SERVICES: Final = {str(c.__struct_config__.tag) for c in COMMANDS if c.of_services}

Row = dict[str, Any]


class ObjectKey(NamedTuple):
    """A schema object. ``kind`` is keyspace, table, type, function or aggregate; a view is a table."""

    kind: str
    object_id: str


_KEYS: Final[dict[type[Fact], Callable[[Any], ObjectKey]]] = {
    m.KeyspaceChanged: lambda fact: ObjectKey(KEYSPACE, fact.keyspace.keyspace_id),
    m.KeyspaceDropped: lambda fact: ObjectKey(KEYSPACE, fact.keyspace_id),
    m.TableChanged: lambda fact: ObjectKey(TABLE, fact.table.table_id),
    m.TableSchemaChanged: lambda fact: ObjectKey(TABLE, fact.schema.table_id),
    m.TableDropped: lambda fact: ObjectKey(TABLE, fact.table_id),
    m.TypeChanged: lambda fact: ObjectKey(TYPE, fact.user_type.type_id),
    m.TypeDropped: lambda fact: ObjectKey(TYPE, fact.type_id),
    m.FunctionChanged: lambda fact: ObjectKey(FUNCTION, fact.function.function_id),
    m.FunctionDropped: lambda fact: ObjectKey(FUNCTION, fact.function_id),
    m.AggregateChanged: lambda fact: ObjectKey(AGGREGATE, fact.aggregate.aggregate_id),
    m.AggregateDropped: lambda fact: ObjectKey(AGGREGATE, fact.aggregate_id),
}
"""Functions from a fact to the object that it changes."""


def objects_in(delta: Delta) -> list[ObjectKey]:
    """Return the objects that an epoch changes, each once, in the order of the facts."""
    found = (_KEYS[type(fact)](fact) for fact in delta.facts() if type(fact) in _KEYS)
    return [*dict.fromkeys(found)]


def schema_changes(before: Image, epoch: Epoch, after: Image) -> list[Row]:
    """Return the changes of an epoch, without their cluster. Raises FoldError.

    A change that the object's CQL does not show, such as a truncation, has no row.
    """
    if before.schema is after.schema:
        return []
    try:
        keys = objects_in(Delta(before, epoch))
        return [row for key in keys if (row := _change(before, epoch, after, key)) is not None]
    except Exception as error:  # a fault in a winner stops its cluster alone
        raise FoldError(
            f"epoch {epoch.epoch} changes the schema in a way that this build cannot describe: {error!r}."
            " Upgrade this process."
        ) from error


def _change(before: Image, epoch: Epoch, after: Image, key: ObjectKey) -> Row | None:
    old, new = statement_of(before.schema, *key), statement_of(after.schema, *key)
    shown = new or old
    if shown is None or old == new:
        return None
    request = _request_behind(before, epoch, key, after.schema if new else before.schema)
    return {
        "changed_epoch": epoch.epoch,
        "decided_at": time_of(epoch.at_ms),
        "object_kind": key.kind,
        "object_id": key.object_id,
        "object_name": shown.name,
        "change_kind": "created" if old is None else "dropped" if new is None else "changed",
        "cql_text": None if new is None else new.text,
        "actor": epoch.actor if request is None else request.actor,
        "reason": epoch.reason if request is None else request.reason,
        "command": epoch.command if request is None else str(request.kind),
        "request_id": epoch.request_id if request is None else request.request_id,
    }


def _request_behind(
    before: Image, epoch: Epoch, key: ObjectKey, schema: SchemaImage
) -> Request | None:
    """Return the request that a service carries out with this epoch; None if nobody requested it.

    A person requests the drop of a table or keyspace, and the coordinator carries it out.
    """
    if epoch.command not in _OF_SERVICES:
        return None
    ids = {key.object_id}
    if key.kind == TABLE:
        ids.add(schema.tables[key.object_id].keyspace_id)
    return next(
        (
            request
            for request in before.requests.unfinished_by_id.values()
            if (request.drops or request.replication)
            and (request.table_id or request.keyspace_id) in ids
        ),
        None,
    )
