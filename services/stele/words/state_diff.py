"""The metadata-log's diff as signed lines: + is added, - is removed, ~ is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

import msgspec

from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tables import changed_fields
from stele.words.units import NEVER, clock, counted

Json = Mapping[str, Any]
Line = tuple[str, str]
MOMENT: Final = "_ms"
"""Suffix of fields that hold milliseconds since 1970; 0 means never."""

_ENTITIES = (
    ("nodes", "node", "node_id"),
    ("requests", "request", "request_id"),
    ("keyspaces", "keyspace", "keyspace_id"),
    ("tables", "table", "table_id"),
    ("table_schemas", "columns of table", "table_id"),
    ("types", "type", "type_id"),
    ("functions", "function", "function_id"),
    ("aggregates", "aggregate", "aggregate_id"),
    ("transitions", "transition", "transition_id"),
    ("services", "service", "service_id"),
    ("cdc_generations", "CDC generation", "generation_id"),
    ("table_snapshots", "snapshot", "snapshot_id"),
    ("table_restores", "restore", "restore_id"),
    ("catch_up_replicas", "catch-up replica", "replica_id"),
    ("log_readers", "reader", "reader_id"),
)


def diff_lines(diff: Json) -> list[Line]:
    """Return the lines in the order commits, topology, entities, placements, features, settings."""
    return [
        *_fields("commits", diff.get("commits", {})),
        *_fields("override", diff.get("overrides", {})),
        *_fields("cluster", diff.get("cluster", {})),
        *_fields("topology", diff.get("topology", {})),
        *_fields("coordinator", diff.get("coordinator", {})),
        *_fields("balancing", diff.get("balancing", {})),
        *_fields("schema version", diff.get("schema_version", {})),
        *(line for part in _ENTITIES for line in _rows(diff.get(part[0], {}), *part[1:])),
        *_fields("archive", diff.get("archive", {})),
        *_placements(diff.get("placements", {})),
        *_repairs("repairs", diff.get("repairs", {})),
        *_repairs("restricted repairs", diff.get("restricted_repairs", {})),
        *_features(diff.get("features", {})),
        *_settings(diff.get("settings", {})),
    ]


def _fields(what: str, changed: Json) -> Iterator[Line]:
    for name, values in changed.items():
        before, after = values["before"], values["after"]
        if _is_map(before) and _is_map(after):
            inner = changed_fields(before, after)
            yield from _fields(what, {f"{name} {key}": value for key, value in inner.items()})
        else:
            change = _members(before, after) or f"{_field(name, before)} -> {_field(name, after)}"
            yield "~", f"{what}: {name.removesuffix(MOMENT)} {change}"


def _members(before: object, after: object) -> str:
    """Return the changes between two lists of named things, such as columns; empty for others.

    For example ``-pages, +title int, note text -> blob``.
    """
    one, two = _by_name(before), _by_name(after)
    if one is None or two is None:
        return ""
    gone = [f"-{name}" for name in one if name not in two]
    new = [
        f"+{name} {row.get('type', '')}".rstrip() for name, row in two.items() if name not in one
    ]
    changed = [
        f"{name} {_value(row.get('type'))} -> {_value(two[name].get('type'))}"
        for name, row in one.items()
        if name in two and row.get("type") != two[name].get("type")
    ]
    return ", ".join([*gone, *new, *changed])


def _by_name(rows: object) -> dict[str, Json] | None:
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and "name" in row for row in rows
    ):
        return None
    return {str(row["name"]): row for row in rows}


def _is_map(value: object) -> TypeGuard[dict[str, Any]]:
    """Return True if each entry has its own line. A switch of the balancer is one value."""
    return isinstance(value, dict) and "off_since" not in value


def _rows(rows: Json, what: str, key: str) -> Iterator[Line]:
    for row in rows.get("removed", ()):
        yield "-", f"{what} {row[key]}"
    for row in rows.get("added", ()):
        yield "+", f"{what} {row[key]}{_short(row, key)}"
    for row in rows.get("changed", ()):
        yield from _fields(f"{what} {row[key]}", row["fields"])


def _placements(placements: Json) -> Iterator[Line]:
    for name, rows in placements.items():
        removed = {_range(row) for row in rows["removed"]}
        same = {_range(row) for row in rows["added"]} & removed
        signed = [("-", row) for row in rows["removed"]] + [("+", row) for row in rows["added"]]
        for sign, row in sorted(signed, key=lambda found: (found[1]["start"], found[0] == "+")):
            if _range(row) not in same:
                yield sign, f"placement {name}: {_range(row)}"
        if same:
            count = counted(len(same), "range", "ranges")
            yield "~", f"placement {name}: {count}: only the version changed"


def _repairs(what: str, tables: Json) -> Iterator[Line]:
    for table_id, found in tables.items():
        yield "~", f"{what}: table {table_id} has {found['repaired']} tablets with other times"


def _range(row: Json) -> str:
    span = f"({row['start']}, {row['end']}]"
    there = msgspec.convert(row, RangeReplicas)
    reads, writes = (" ".join(map(there.place, nodes)) for nodes in (there.reads, there.writes))
    return f"{span} {reads}" if reads == writes else f"{span} reads {reads}, writes {writes}"


def _features(features: Json) -> Iterator[Line]:
    for name in features.get("removed", ()):
        yield "-", f"feature {name}"
    for name in features.get("added", ()):
        yield "+", f"feature {name}"


def _settings(settings: Json) -> Iterator[Line]:
    for name in settings.get("removed", {}):
        yield "-", f"setting {name}"
    for name, value in settings.get("added", {}).items():
        yield "+", f"setting {name} = {value}"
    yield from _fields("setting", settings.get("changed", {}))


def _short(row: Json, key: str) -> str:
    names = ("name", "kind", "node_id", "status", "state", "dc", "rack")
    shown = [str(row[name]) for name in names if name != key and row.get(name)]
    return f": {' '.join(shown)}" if shown else ""


def _field(name: str, value: object) -> str:
    if name.endswith(MOMENT) and isinstance(value, int):
        return clock(value) or NEVER
    return _value(value)


def _value(value: object) -> str:
    match value:
        case None | "":
            return "(none)"
        case list():
            return f"{len(value)} values" if value else "none"
        case dict() if "off_since" in value:
            return f"off since epoch {value['off_since']}" if value["off_since"] else "on"
        case dict():
            return f"{len(value)} entries"
        case _:
            return str(value)
