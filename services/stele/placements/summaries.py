"""Rows of the tables that describe a cluster's present state, each made from its image. Pure.

A table is one entry of ``SUMMARIES``: its columns, and the function that makes its rows.
``cluster`` and ``as_of_epoch`` come before the other columns. No column is a word of SQL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.model.requests import Request, RequestChanged, RequestForgotten
from stele.domain.model.schema_objects import ColumnKind
from stele.domain.names import NodeState
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from stele.placements.events import time_of

Row = dict[str, Any]

REQUESTS: Final = "requests"
_RING: Final = 2**64
_TEXT, _NUMBER, _TRUTH = pa.string(), pa.int64(), pa.bool_()
_TIME: Final = pa.timestamp("us", tz="UTC")


class Summary(NamedTuple):
    """``domains`` are the parts of the image from which the rows follow; empty: all of it.

    With a ``key``, rows that an image no longer contains remain, identified by this column. They
    have the column ``finished_epoch``, 0 while a row may still change. Without a key they go.
    """

    columns: Mapping[str, pa.DataType]
    rows: Callable[[Image], Iterable[Row]]
    domains: tuple[str, ...] = ()
    key: str = ""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("cluster", _TEXT), ("as_of_epoch", _NUMBER), *self.columns.items()])


def changed(summary: Summary, before: Image | None, image: Image) -> bool:
    """Return whether the rows may have changed.

    Images share unchanged parts, so identity decides.
    """
    if before is None or not summary.domains:
        return True
    return any(getattr(before, name) is not getattr(image, name) for name in summary.domains)


def rows_of(summary: Summary, cluster: str, image: Image) -> list[Row]:
    shared = {"cluster": cluster, "as_of_epoch": image.epoch}
    return [{**shared, **row} for row in summary.rows(image)]


class Ended(NamedTuple):
    """A finished request that left the image at ``epoch``."""

    request: Request
    epoch: int


def ended_requests(delta: Delta) -> list[Ended]:
    """Return the requests that an epoch removes from the image, as they were when they ended.

    A request may end and leave in one epoch. No image then contains its end.
    """
    ended: dict[str, Request] = {}
    gone: list[str] = []
    for fact in delta.facts():
        if isinstance(fact, RequestChanged):
            ended[fact.request.request_id] = fact.request
        elif isinstance(fact, RequestForgotten):
            gone.append(fact.request_id)
    known = (ended.get(each) or delta.before.request(each) for each in gone)
    return [Ended(request, delta.epoch.epoch) for request in known if request is not None]


def rows_of_ended(cluster: str, ended: Iterable[Ended]) -> list[Row]:
    """Return the rows of table ``requests`` for requests that left the image."""
    return [
        {"cluster": cluster, "as_of_epoch": each.epoch, **_request(each.request)} for each in ended
    ]


def _clusters(image: Image) -> Iterator[Row]:
    yield {
        "cluster_id": image.cluster_id,
        "log_id": image.log_id.hex(),
        "state_id": image.state_id.hex(),
        "features": sorted(image.features.enabled),
        "topology_version": image.topology.version,
        "fence_version": image.topology.fence_version,
        "version_since_epoch": image.topology.since_epoch,
        "coordinator": image.topology.coordinator.holder,
        "coordinator_term": image.topology.coordinator.term,
    }


def _nodes(image: Image) -> Iterator[Row]:
    for node in image.membership.nodes.values():
        yield {
            "node_id": node.node_id,
            "address": node.address,
            "dc": node.dc,
            "rack": node.rack,
            "node_state": str(node.state),
            "num_tokens": node.num_tokens,
            "shards": node.shards,
            "release_version": node.release_version,
            "host_id": node.host_id,
            "request_id": node.request_id,
            "excluded_since": node.excluded_since,
            "cleanup_since": node.cleanup_since,
        }


def _keyspaces(image: Image) -> Iterator[Row]:
    for keyspace in image.schema.by_id.values():
        yield {
            "keyspace_id": keyspace.keyspace_id,
            "keyspace_name": keyspace.name,
            "replication": msgspec.json.encode(keyspace.replication, order="sorted").decode(),
            "placement": keyspace.placement,
            "has_tablets": keyspace.tablets,
            "placed_version": keyspace.placed_version,
            "dropped_version": keyspace.dropped_version,
            "truncated_version": keyspace.truncated_version,
        }


def _tables(image: Image) -> Iterator[Row]:
    keyspaces = image.schema.by_id
    for table in image.schema.tables.values():
        keyspace = keyspaces.get(table.keyspace_id)
        placement = image.ring.placements.get(table.placement)
        own = image.schema.schemas.get(table.table_id)
        yield {
            "table_id": table.table_id,
            "table_name": table.name,
            "keyspace_id": table.keyspace_id,
            "keyspace_name": "" if keyspace is None else keyspace.name,
            "placement": table.placement,
            "tablet_count": 0 if placement is None else _count(placement),
            "dropped_version": table.dropped_version,
            "truncated_version": table.truncated_version,
            "table_kind": "opaque" if own is None else "table" if own.view is None else "view",
            "columns_epoch": 0 if own is None else own.version,
        }


def _columns(image: Image) -> Iterator[Row]:
    schema = image.schema
    for table_schema in schema.schemas.values():
        table = schema.tables[table_schema.table_id]
        keyspace = schema.by_id[table.keyspace_id]
        for position, column in enumerate(table_schema.columns):
            yield {
                "table_id": table.table_id,
                "keyspace_name": keyspace.name,
                "table_name": table.name,
                "column_position": position,
                "column_id": column.column_id,
                "column_name": column.name,
                "column_type": column.type,
                "column_kind": str(column.kind),
                "clustering_order": str(column.order)
                if column.kind is ColumnKind.CLUSTERING
                else None,
            }


def _types(image: Image) -> Iterator[Row]:
    schema = image.schema
    for user_type in schema.types.values():
        yield {
            "type_id": user_type.type_id,
            "keyspace_name": schema.by_id[user_type.keyspace_id].name,
            "type_name": user_type.name,
            "field_names": [field.name for field in user_type.fields],
            "field_types": [field.type for field in user_type.fields],
            "changed_epoch": user_type.version,
        }


def _requests(image: Image) -> Iterator[Row]:
    yield from map(_request, image.requests.requests.values())


def _request(request: Request) -> Row:
    return {
        "request_id": request.request_id,
        "request_kind": str(request.kind),
        "request_status": str(request.status),
        "node_id": request.node_id,
        "keyspace_id": request.keyspace_id,
        "table_id": request.table_id,
        "actor": request.actor,
        "reason": request.reason,
        "error_text": request.error,
        "was_cancelled": request.cancelled,
        "submitted_epoch": request.submitted_epoch,
        "started_epoch": request.started_epoch,
        "finished_epoch": request.finished_epoch,
        "submitted_at": _time(request.submitted_at_ms),
        "started_at": _time(request.started_at_ms),
        "finished_at": _time(request.finished_at_ms),
        "waited_s": _seconds(request.submitted_at_ms, request.started_at_ms),
        "ran_s": _seconds(_began_ms(request), request.finished_at_ms),
    }


def _transitions(image: Image) -> Iterator[Row]:
    for transition in image.topology.transitions.values():
        yield {
            "transition_id": transition.transition_id,
            "transition_kind": str(transition.kind),
            "transition_state": str(transition.state),
            "request_ids": list(transition.request_ids()),
            "node_ids": list(transition.nodes()),
            "keyspace_id": transition.keyspace_id,
            "table_id": transition.table_id,
            "entered_version": transition.entered_version,
            "entered_epoch": transition.entered_epoch,
            "goes_back_why": transition.mark,
        }


def _ownership(image: Image) -> Iterator[Row]:
    for name, placement in image.ring.placements.items():
        for (node_id, role), (ranges, share) in sorted(shares(placement).items()):
            yield {
                "placement": name,
                "node_id": node_id,
                "replica_role": role,
                "range_count": ranges,
                "ring_share": share,
            }


def shares(placement: Placement) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the number of ranges and their part of the ring, by node and ``read`` or ``write``."""
    counts, tokens = defaultdict[tuple[str, str], int](int), defaultdict[tuple[str, str], int](int)
    for row in placement.rows:
        width = _width(row.start, row.end)
        for role, nodes in (("read", row.reads), ("write", row.writes)):
            for node_id in nodes:
                counts[node_id, role] += 1
                tokens[node_id, role] += width
    return {key: (counts[key], tokens[key] / _RING) for key in counts}


def _count(placement: Placement) -> int:
    return sum(len(chunk.keys) for chunk in placement.table.chunks)


def _width(start: int, end: int) -> int:
    """Return the number of tokens in (start, end].

    ``MIN_TOKEN`` as an end is the end of the ring.
    """
    return (-MIN_TOKEN if end == MIN_TOKEN else end) - start


def _began_ms(request: Request) -> int:
    return request.started_at_ms or request.submitted_at_ms


def _time(at_ms: int) -> datetime | None:
    return time_of(at_ms) if at_ms else None


def _seconds(from_ms: int, to_ms: int) -> float | None:
    """Return the seconds between two times; None until both are set."""
    return (to_ms - from_ms) / 1000 if from_ms and to_ms else None


SUMMARIES: Final[dict[str, Summary]] = {
    "clusters": Summary(
        {
            "cluster_id": _TEXT,
            "log_id": _TEXT,
            "state_id": _TEXT,
            "features": pa.list_(_TEXT),
            "topology_version": _NUMBER,
            "fence_version": _NUMBER,
            "version_since_epoch": _NUMBER,
            "coordinator": _TEXT,
            "coordinator_term": _NUMBER,
        },
        _clusters,
    ),
    "nodes": Summary(
        {
            "node_id": _TEXT,
            "address": _TEXT,
            "dc": _TEXT,
            "rack": _TEXT,
            "node_state": _TEXT,
            "num_tokens": _NUMBER,
            "shards": _NUMBER,
            "release_version": _TEXT,
            "host_id": _TEXT,
            "request_id": _TEXT,
            "excluded_since": _NUMBER,
            "cleanup_since": _NUMBER,
        },
        _nodes,
        ("membership",),
    ),
    "keyspaces": Summary(
        {
            "keyspace_id": _TEXT,
            "keyspace_name": _TEXT,
            "replication": _TEXT,
            "placement": _TEXT,
            "has_tablets": _TRUTH,
            "placed_version": _NUMBER,
            "dropped_version": _NUMBER,
            "truncated_version": _NUMBER,
        },
        _keyspaces,
        ("schema",),
    ),
    "tables": Summary(
        {
            "table_id": _TEXT,
            "table_name": _TEXT,
            "keyspace_id": _TEXT,
            "keyspace_name": _TEXT,
            "placement": _TEXT,
            "tablet_count": _NUMBER,
            "dropped_version": _NUMBER,
            "truncated_version": _NUMBER,
            "table_kind": _TEXT,
            "columns_epoch": _NUMBER,
        },
        _tables,
        ("schema", "ring"),
    ),
    "columns": Summary(
        {
            "table_id": _TEXT,
            "keyspace_name": _TEXT,
            "table_name": _TEXT,
            "column_position": _NUMBER,
            "column_id": _NUMBER,
            "column_name": _TEXT,
            "column_type": _TEXT,
            "column_kind": _TEXT,
            "clustering_order": _TEXT,
        },
        _columns,
        ("schema",),
    ),
    "types": Summary(
        {
            "type_id": _TEXT,
            "keyspace_name": _TEXT,
            "type_name": _TEXT,
            "field_names": pa.list_(_TEXT),
            "field_types": pa.list_(_TEXT),
            "changed_epoch": _NUMBER,
        },
        _types,
        ("schema",),
    ),
    REQUESTS: Summary(
        {
            "request_id": _TEXT,
            "request_kind": _TEXT,
            "request_status": _TEXT,
            "node_id": _TEXT,
            "keyspace_id": _TEXT,
            "table_id": _TEXT,
            "actor": _TEXT,
            "reason": _TEXT,
            "error_text": _TEXT,
            "was_cancelled": _TRUTH,
            "submitted_epoch": _NUMBER,
            "started_epoch": _NUMBER,
            "finished_epoch": _NUMBER,
            "submitted_at": _TIME,
            "started_at": _TIME,
            "finished_at": _TIME,
            "waited_s": pa.float64(),
            "ran_s": pa.float64(),
        },
        _requests,
        ("requests",),
        key="request_id",
    ),
    "transitions": Summary(
        {
            "transition_id": _TEXT,
            "transition_kind": _TEXT,
            "transition_state": _TEXT,
            "request_ids": pa.list_(_TEXT),
            "node_ids": pa.list_(_TEXT),
            "keyspace_id": _TEXT,
            "table_id": _TEXT,
            "entered_version": _NUMBER,
            "entered_epoch": _NUMBER,
            "goes_back_why": _TEXT,
        },
        _transitions,
        ("topology",),
    ),
    "ownership": Summary(
        {
            "placement": _TEXT,
            "node_id": _TEXT,
            "replica_role": _TEXT,
            "range_count": _NUMBER,
            "ring_share": pa.float64(),
        },
        _ownership,
        ("ring",),
    ),
}


# Evenness of placements over nodes: a row for each placement, role and time. Pure.


SCHEMA: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("as_of_epoch", pa.int64()),
        ("placement", pa.string()),
        ("replica_role", pa.string()),
        ("node_count", pa.int64()),
        ("fewest_ranges", pa.int64()),
        ("most_ranges", pa.int64()),
        ("least_share", pa.float64()),
        ("most_share", pa.float64()),
        ("mean_share", pa.float64()),
    ]
)
"""``replica_role`` is read or write. A share is a part of the ring.

The mean share of a placement is its replication factor divided by its nodes. Normal nodes without
ranges count as zero.
"""


def rows(cluster: str, image: Image) -> Iterator[dict[str, Any]]:
    """Yield the spread at the image's epoch. A placement without ranges has no rows."""
    normal = [n.node_id for n in image.membership.nodes.values() if n.state is NodeState.NORMAL]
    for name, placement in image.ring.placements.items():
        found = shares(placement)
        for role in ("read", "write"):
            having = {node for node, its_role in found if its_role == role}
            nodes = sorted(having | set(normal))
            if not having:
                continue
            ranges, parts = zip(*(found.get((node, role), (0, 0.0)) for node in nodes), strict=True)
            yield {
                "cluster": cluster,
                "as_of_epoch": image.epoch,
                "placement": name,
                "replica_role": role,
                "node_count": len(nodes),
                "fewest_ranges": min(ranges),
                "most_ranges": max(ranges),
                "least_share": min(parts),
                "most_share": max(parts),
                "mean_share": sum(parts) / len(nodes),
            }
