"""Rows of a domain as JSON, and the differences between two tables of them."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec

Json = dict[str, Any]

V = TypeVar("V")
_ABSENT: Final = object()


def sorted_values(mapping: Mapping[str, V]) -> Iterable[V]:
    """Return the values by sorted key. A map's own order must not influence any result."""
    return (mapping[key] for key in sorted(mapping))


def row_json(struct: msgspec.Struct) -> Json:
    """Return the struct as plain JSON values, with fields in their order and maps sorted."""
    shown: Json = msgspec.to_builtins(struct, order="deterministic")
    return shown


def plain_values(value: Json) -> Json:
    """Return structs, sequences and maps of them as plain JSON values, with maps sorted."""
    return {
        k: msgspec.to_builtins(v, order="deterministic", enc_hook=dict) for k, v in value.items()
    }


def changed_fields(before: Json, after: Json) -> Json:
    """Return field -> {before, after} for the fields that differ. A missing field is None."""
    return {
        name: {"before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
    }


def in_order(sections: Json) -> Json:
    """Return sections whose rows are ordered by id. A section is a struct, or rows by id."""
    return {
        name: section if isinstance(section, msgspec.Struct) else tuple(sorted_values(section))
        for name, section in sections.items()
    }


def changed_sections(before: Json, after: Json) -> Json:
    """Return the differences between the same sections of two images.

    A section is a struct, or rows by id: structs whose first field is the id.
    """
    return {
        name: changed_fields(row_json(before[name]), row_json(now))
        if isinstance(now, msgspec.Struct)
        else _changed_rows(before[name], now)
        for name, now in after.items()
    }


def _changed_rows(
    before: Mapping[str, msgspec.Struct], after: Mapping[str, msgspec.Struct]
) -> Json:
    """Return the added, removed and changed rows.

    The form is ``{added: [row], removed: [row], changed: [{key: id, fields: {name: {before,
    after}}}]}``.
    """
    rows = chain(before.values(), after.values())
    key = next((row.__struct_fields__[0] for row in rows), "")
    added, removed, changed = compared(before, after)
    return {
        "added": [row_json(after[name]) for name in added],
        "removed": [row_json(before[name]) for name in removed],
        "changed": [
            {key: name, "fields": changed_fields(row_json(before[name]), row_json(after[name]))}
            for name in changed
        ],
    }


def compared(
    before: Mapping[str, V], after: Mapping[str, V]
) -> tuple[list[str], list[str], list[str]]:
    """Return the keys that were added, removed and changed, each sorted."""
    added = sorted(key for key in after if key not in before)
    removed = sorted(key for key in before if key not in after)
    changed = sorted(key for key in after if key in before and before[key] != after[key])
    return added, removed, changed
