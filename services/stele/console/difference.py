"""The difference between two states for a person: grouped, with names, and data by node."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from stele.console.epoch_text import names_of
from stele.console.views import map_name
from stele.domain.image import Image
from stele.domain.model.schema_objects import Aggregate, Function, UserType
from stele.domain.names import TABLET_MAP
from stele.domain.ring.columns import PAD
from stele.domain.ring.placement import WRITES, Placement
from stele.domain.view import diff
from stele.words.names import ID, what
from stele.words.state_diff import diff_lines

MOST_LINES: Final = 2000
"""Limit of the lines of all changes that are shown."""
MOST_CHANGES: Final = 200
"""Limit of the changes of one group that are shown."""

NAME_TWICE: Final = re.compile(r"^(\w+ (?:\S+\.)?(\S+)): \2(?= |$)")
"""Such as ``table radio.songs: songs``."""

Line = tuple[str, str]
"""A sign (+ added, - removed, ~ changed) and words."""
GROUPS: Final = (
    ("Keyspaces and tables", ("keyspaces", "tables")),
    ("Columns, types and functions", ("table_schemas", "types", "functions", "aggregates")),
    ("Settings and features", ("settings", "features", "balancing", "commits", "overrides")),
    ("Snapshots", ("table_snapshots", "table_restores")),
    ("Services and archive", ("services", "archive", "catch_up_replicas", "log_readers")),
)
"""Groups by title, with the sections of the state's diff in each."""


class Group(msgspec.Struct, frozen=True):
    """Changes of one kind of object. ``more`` is the number of changes left out."""

    title: str
    changes: tuple[Line, ...]
    more: int = 0


class NodeShare(msgspec.Struct, frozen=True):
    """Numbers of ranges or tablets that a node holds before and after."""

    node: str
    before: int
    after: int


class MapDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A placement that changed: ``changed`` of its ``rows`` differ, and by node what it holds."""

    placement: str
    name: str
    tablets: bool
    rows_before: int
    rows: int
    changed: int
    nodes: tuple[NodeShare, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two epochs. ``lines`` are all changes, ``more`` those left out."""

    before: int
    after: int
    groups: tuple[Group, ...]
    maps: tuple[MapDifference, ...]
    lines: tuple[Line, ...]
    more: int


def difference(before: Image, after: Image) -> Difference:
    """Return what changed from one state to another."""
    names = names_of(before, after)
    for image in (before, after):
        names.add((), (), image.requests.requests.values())

    objects = {**_objects(before), **_objects(after)}

    def named(line: Line) -> Line:
        sign, text = line
        text = ID.sub(lambda found: objects.get(found[0], found[0]), names.named(text))
        # The row of an added object ends with its name, which stands for the id already.
        return sign, NAME_TWICE.sub(r"\1", text) if sign == "+" else text

    found = msgspec.json.decode(msgspec.json.encode(diff(before, after)))
    lines = [named(line) for line in diff_lines(found)]
    changes: list[tuple[str, list[Line]]] = [
        ("Operations", [*_requests(before, after)]),
        ("Nodes", [*_nodes(before, after)]),
        ("Topology", [*_topology(before, after)]),
        *(
            (
                title,
                [named(line) for line in diff_lines({name: found.get(name, {}) for name in of})],
            )
            for title, of in GROUPS
        ),
    ]
    return Difference(
        before=before.epoch,
        after=after.epoch,
        groups=tuple(
            Group(title, tuple(own[:MOST_CHANGES]), max(0, len(own) - MOST_CHANGES))
            for title, own in changes
            if own
        ),
        maps=tuple(_maps(before, after, found.get("placements", {}))),
        lines=tuple(lines[:MOST_LINES]),
        more=max(0, len(lines) - MOST_LINES),
    )


def _objects(image: Image) -> dict[str, str]:
    """Return the names of types, functions and aggregates by id."""
    schema = image.schema
    rows: list[tuple[str, UserType | Function | Aggregate]] = [
        *((each.type_id, each) for each in schema.types.values()),
        *((each.function_id, each) for each in schema.functions.values()),
        *((each.aggregate_id, each) for each in schema.aggregates.values()),
    ]
    return {
        row_id: f"{schema.by_id[row.keyspace_id].name}.{row.name}"
        for row_id, row in rows
        if row.keyspace_id in schema.by_id
    }


def _requests(before: Image, after: Image) -> Iterator[Line]:
    """Yield requests that are new or have another status. The state forgets finished ones."""
    names = {**before.schema.names_by_id(), **after.schema.names_by_id()}
    old = before.requests.requests
    new = after.requests.requests.values()
    for each in sorted(new, key=lambda r: (r.submitted_epoch, r.request_id)):
        known, text = old.get(each.request_id), what(each, names)
        error = f" ({each.error})" if each.error else ""
        if known is None:
            by = f", requested by {each.actor}" if each.actor else ""
            yield "+", f"{text}: {each.status}{error}{by}"
        elif known.status != each.status:
            yield "~", f"{text}: {known.status} -> {each.status}{error}"


def _nodes(before: Image, after: Image) -> Iterator[Line]:
    old, new = before.membership.nodes, after.membership.nodes
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if now is None:
            yield "-", name
        elif was is None:
            yield "+", f"{name}: {now.state}, {now.dc} {now.rack}, {len(now.tokens)} tokens"
        else:
            changed = [f"{was.state} -> {now.state}"] if was.state != now.state else []
            if len(was.tokens) != len(now.tokens):
                changed.append(f"tokens {len(was.tokens)} -> {len(now.tokens)}")
            changed += [
                f"{field} {getattr(was, field) or 'none'} -> {getattr(now, field) or 'none'}"
                for field in ("address", "release_version")
                if getattr(was, field) != getattr(now, field)
            ]
            if was.excluded != now.excluded:
                changed.append("excluded" if now.excluded else "no longer excluded")
            if changed:
                yield "~", f"{name}: {', '.join(changed)}"


def _topology(before: Image, after: Image) -> Iterator[Line]:
    old, new = before.topology, after.topology
    for name, was, now in (
        ("version", old.version, new.version),
        ("fence", old.fence_version, new.fence_version),
        ("coordinator term", old.coordinator.term, new.coordinator.term),
    ):
        if was != now:
            yield "~", f"{name} {was} -> {now}"


def _maps(before: Image, after: Image, changed: Mapping[str, Any]) -> Iterator[MapDifference]:
    """Yield placements that changed, with the number of rows by node."""
    for name in sorted({*before.ring.placements, *after.ring.placements}):
        old, new = before.ring.placements.get(name), after.ring.placements.get(name)
        if name not in changed:
            continue
        held = _held(before, old), _held(after, new)
        nodes = sorted({*held[0], *held[1]})
        image = after if new is not None else before
        yield MapDifference(
            placement=name,
            name=map_name(image, name),
            tablets=name.startswith(TABLET_MAP),
            rows_before=0 if old is None else len(old),
            rows=0 if new is None else len(new),
            changed=max(len(changed[name]["added"]), len(changed[name]["removed"])),
            nodes=tuple(NodeShare(n, held[0].get(n, 0), held[1].get(n, 0)) for n in nodes),
        )


def _held(image: Image, placement: Placement | None) -> dict[str, int]:
    """Return the number of rows that each node writes."""
    if placement is None:
        return {}
    writes = placement.table.all().values[WRITES]
    numbers, counts = np.unique(writes[writes != PAD], return_counts=True)
    names = image.ring.nodes.names
    return {names[n]: count for n, count in zip(numbers.tolist(), counts.tolist(), strict=True)}
