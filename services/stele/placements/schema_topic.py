"""The form of the compacted topic ``schema``: one record for each object. Pure.

Keys are ``<cluster>/<kind>/<id>``, values ``SchemaObject``. The topic changes only with the schema,
so the epoch of its marker is one that changed the schema, or the first that was published.
"""

from collections.abc import Iterator, Set
from typing import Any, Final

from stele.domain.messages import SchemaColumn, SchemaObject
from stele.domain.model.schema import SchemaImage
from stele.domain.model.schema_objects import ColumnKind
from stele.log.codec import decode_schema_object, encode_schema_object
from stele.placements.schema_history import (
    AGGREGATE,
    FUNCTION,
    KEYSPACE,
    TABLE,
    TYPE,
    ObjectKey,
)
from stele.placements.topic import Form, Marker
from stele.words.cql import statement_of

KINDS: Final = (KEYSPACE, TABLE, TYPE, FUNCTION, AGGREGATE)
FIELD: Final = "field"


def _text_of(cluster: str, key: ObjectKey) -> str:
    return f"{cluster}/{key.kind}/{key.object_id}"


def _key_of(cluster: str, text: str) -> ObjectKey | None:
    kind, _, object_id = text.removeprefix(f"{cluster}/").partition("/")
    key = ObjectKey(kind, object_id)
    return key if kind in KINDS and object_id and text == _text_of(cluster, key) else None


def _rows(
    cluster: str, marker: Marker, schema: SchemaImage, keys: Set[ObjectKey] | None
) -> dict[ObjectKey, SchemaObject | None]:
    """Return the objects at the keys, None for one that does not exist; all without keys."""
    if keys is None:
        keys = {*_all_keys(schema)}
    return {key: _row(cluster, marker, schema, key) for key in keys}


def _all_keys(schema: SchemaImage) -> Iterator[ObjectKey]:
    maps: tuple[Any, ...] = (
        *(schema.by_id, schema.tables, schema.types, schema.functions, schema.aggregates),
    )
    for kind, objects in zip(KINDS, maps, strict=True):
        yield from (ObjectKey(kind, object_id) for object_id in objects)


def _row(cluster: str, marker: Marker, schema: SchemaImage, key: ObjectKey) -> SchemaObject | None:
    statement = statement_of(schema, *key)
    if statement is None:
        return None
    own = schema.schemas.get(key.object_id)
    base = "" if own is None or own.view is None else own.view.base_table_id
    return SchemaObject(
        cluster=cluster,
        object_kind=key.kind,
        object_id=key.object_id,
        keyspace_name=statement.name.partition(".")[0],
        object_name=statement.name,
        columns=tuple(_columns(schema, key)),
        base_table_id=base,
        cql=statement.text,
        epoch=marker.epoch,
        state_id=marker.state_id,
    )


def _columns(schema: SchemaImage, key: ObjectKey) -> Iterator[SchemaColumn]:
    if key.kind == TYPE:
        for field in schema.types[key.object_id].fields:
            yield SchemaColumn(column_id=0, name=field.name, type=field.type, kind=FIELD)
    own = schema.schemas.get(key.object_id) if key.kind == TABLE else None
    for column in () if own is None else own.columns:
        order = str(column.order) if column.kind is ColumnKind.CLUSTERING else ""
        yield SchemaColumn(
            column_id=column.column_id,
            name=column.name,
            type=column.type,
            kind=str(column.kind),
            order=order,
        )


def _same_image(schema: SchemaImage) -> SchemaImage:
    return schema  # images never change


SCHEMA_TOPIC: Final[Form[ObjectKey, SchemaObject, SchemaImage]] = Form(
    flow="schema",
    text_of=_text_of,
    key_of=_key_of,
    encode=encode_schema_object,
    decode=decode_schema_object,
    rows=_rows,
    kept=_same_image,
)
