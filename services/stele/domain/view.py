"""The image as people and HTTP clients see it: plain JSON values, state ids in hex, one fixed order.

``view`` shows all that is true at an epoch, ``diff`` what two images do not share, domain by domain.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
from immutables import Map

from stele.domain.entities import Operation
from stele.domain.facts import Epoch
from stele.domain.image import Image, sorted_values
from stele.domain.ring.ranges import Placement, RangeReplicas
from stele.domain.snapshot import state_hash

Json = dict[str, Any]

V = TypeVar("V")
S = TypeVar("S", bound=msgspec.Struct)
_ABSENT: Final = object()


def view(image: Image) -> Json:
    """All of the image. Equal images give equal views, in the order of their keys too."""
    return {
        "cluster": image.cluster,
        "cluster_id": image.cluster_id,
        "epoch": image.epoch,
        "state_id": image.state_id.hex(),
        "hash": state_hash(image),
        "topology": _row(image.topology.topology),
        "coordinator": _row(image.topology.coordinator),
        "operation": _operation(image.topology.operation),
        "nodes": [_row(node) for node in sorted_values(image.membership.nodes)],
        "requests": [_row(request) for request in sorted_values(image.requests.requests)],
        "keyspaces": [_row(keyspace) for keyspace in sorted_values(image.schema.keyspaces)],
        "placements": {
            name: [_row(row) for row in image.ring.placements[name].rows]
            for name in sorted(image.ring.placements)
        },
        "features": list(image.features.enabled),
        "settings": dict(sorted(image.features.settings.items())),
    }


def epoch_view(epoch: Epoch) -> Json:
    """One epoch of the log: what became true, who asked for it and why."""
    shown: Json = msgspec.to_builtins(epoch, builtin_types=(bytes,))
    shown["prev_state_id"] = epoch.prev_state_id.hex()
    shown["state_id"] = epoch.state_id.hex()
    shown["command_digest"] = epoch.command_digest.hex()
    for fact in shown["facts"]:
        if "digest" in fact:
            fact["digest"] = fact["digest"].hex()
    return shown


def diff(before: Image, after: Image) -> Json:
    """What was added, removed or changed between two images; every domain is there, even when equal.

    Rows of entities: ``{added: [row], removed: [row], changed: [{key: id, fields: {name: {before,
    after}}}]}``. Placements, by name, only those that differ: ``{added: [row], removed: [row]}`` in
    ring order. ``topology``, ``coordinator`` and ``operation``: only the fields that differ.
    """
    return {
        "from_epoch": before.epoch,
        "to_epoch": after.epoch,
        "topology": _fields(_row(before.topology.topology), _row(after.topology.topology)),
        "coordinator": _fields(_row(before.topology.coordinator), _row(after.topology.coordinator)),
        "operation": _fields(
            _operation(before.topology.operation) or {}, _operation(after.topology.operation) or {}
        ),
        "nodes": _rows("node_id", before.membership.nodes, after.membership.nodes),
        "requests": _rows("request_id", before.requests.requests, after.requests.requests),
        "keyspaces": _rows("name", before.schema.keyspaces, after.schema.keyspaces),
        "placements": _placements(before.ring.placements, after.ring.placements),
        "features": {
            "added": sorted({*after.features.enabled} - {*before.features.enabled}),
            "removed": sorted({*before.features.enabled} - {*after.features.enabled}),
        },
        "settings": _settings(before.features.settings, after.features.settings),
    }


def _row(struct: msgspec.Struct) -> Json:
    shown: Json = msgspec.to_builtins(struct, order="deterministic")
    return shown


def _operation(operation: Operation | None) -> Json | None:
    return None if operation is None else _row(operation)


def _rows(key: str, before: Map[str, S], after: Map[str, S]) -> Json:
    added, removed, changed = _compare(before, after)
    return {
        "added": [_row(after[name]) for name in added],
        "removed": [_row(before[name]) for name in removed],
        "changed": [
            {key: name, "fields": _fields(_row(before[name]), _row(after[name]))}
            for name in changed
        ],
    }


def _settings(before: Map[str, str], after: Map[str, str]) -> Json:
    added, removed, changed = _compare(before, after)
    return {
        "added": {name: after[name] for name in added},
        "removed": {name: before[name] for name in removed},
        "changed": {name: {"before": before[name], "after": after[name]} for name in changed},
    }


def _placements(before: Map[str, Placement], after: Map[str, Placement]) -> Json:
    found: Json = {}
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is new or old == new:
            continue
        rows_old, rows_new = _row_set(old), _row_set(new)
        found[name] = {
            "added": _in_ring_order(rows_new - rows_old),
            "removed": _in_ring_order(rows_old - rows_new),
        }
    return found


def _row_set(placement: Placement | None) -> set[RangeReplicas]:
    return set() if placement is None else set(placement.rows)


def _in_ring_order(rows: set[RangeReplicas]) -> list[Json]:
    return [_row(row) for row in sorted(rows, key=attrgetter("start"))]


def _compare(
    before: Mapping[str, V], after: Mapping[str, V]
) -> tuple[list[str], list[str], list[str]]:
    """Keys that were added, removed, changed; each sorted."""
    added = sorted(key for key in after if key not in before)
    removed = sorted(key for key in before if key not in after)
    changed = sorted(key for key in after if key in before and before[key] != after[key])
    return added, removed, changed


def _fields(before: Json, after: Json) -> Json:
    """Field -> {before, after} of those that differ; a field that is not there shows as None."""
    return {
        name: {"before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
    }
