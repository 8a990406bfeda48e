"""The oldest schema that can say what a record says, so that a rolling upgrade is never a flag day.

A new build knows facts and fields that older ones do not. As long as it has nothing to say with them, it
writes what older builds can read; ``decide`` sees to it that it has nothing to say before the feature is
enabled.
"""

from functools import cache
from typing import Any

from stele.log.schemas import Schema, load_schemas, records_of

Fields = dict[str, dict[str, Schema]]
"""Record name -> field name -> field."""


@cache
def releases(name: str) -> tuple[tuple[bytes, Fields], ...]:
    """Headers of all releases of a schema, the oldest first, with what their records hold."""
    schemas = load_schemas()
    return tuple(
        (header, _fields(schemas.by_header[header][1])) for header in schemas.releases[name]
    )


def oldest_sufficient(name: str, record: dict[str, Any]) -> bytes:
    """The header of the oldest release that loses nothing of a record, given as fastavro takes it.

    The value of a union of records is a pair of the record's name and its fields, and ``facts`` are such
    pairs. The newest release always suffices.
    """
    *older, (newest, fields) = releases(name)
    for header, known in older:
        if _suffices(name, record, known, fields):
            return header
    return newest


def _suffices(name: str, record: dict[str, Any], known: Fields, newest: Fields) -> bool:
    return _holds(f"stele.{name}", record, known, newest)


def _holds(name: str, value: dict[str, Any], known: Fields, newest: Fields) -> bool:
    """Fields that the older release lacks must have their defaults; the same in records inside this one."""
    if name not in known:
        return False
    for field, schema in newest[name].items():
        if field not in value:
            continue
        if field not in known[name]:
            given = value[field]
            plain = list(given) if isinstance(given, tuple) else given  # as Avro's defaults have it
            if plain != schema.get("default"):
                return False
        elif not _holds_inside(schema["type"], value[field], known, newest):
            return False
    return True


def _holds_inside(schema: Schema, value: Any, known: Fields, newest: Fields) -> bool:
    if isinstance(schema, str):
        return schema not in newest or _holds(schema, value, known, newest)
    if isinstance(schema, list) and isinstance(value, tuple):
        named, body = value
        return _holds(named, body, known, newest)
    if isinstance(schema, list):
        return value is None or all(
            _holds_inside(branch, value, known, newest)
            for branch in schema
            if branch != "null" and isinstance(value, dict)
        )
    match schema["type"]:
        case "record":
            held = [_holds(schema["name"], value, known, newest)]
        case "array" if isinstance(schema["items"], list):
            held = [_holds(each, body, known, newest) for each, body in value]
        case "array":
            held = [_holds_inside(schema["items"], each, known, newest) for each in value]
        case "map":
            values = value.values()
            held = [_holds_inside(schema["values"], each, known, newest) for each in values]
        case _:
            held = []
    return all(held)


def _fields(schema: Schema) -> Fields:
    return {
        record: {field["name"]: field for field in fields} for record, fields in records_of(schema)
    }
