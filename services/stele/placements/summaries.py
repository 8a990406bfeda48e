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
from msgspec.structs import asdict

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.model.requests import Request, RequestChanged, RequestForgotten
from stele.domain.model.schema_objects import ColumnKind
from stele.domain.names import NodeState
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from stele.placements.columns import FLOAT, NUMBER, TEXT, TEXTS, TIME, TRUTH, columns
from stele.placements.events import time_of

Row = dict[str, Any]

REQUESTS: Final = "requests"
_RING: Final = 2**64


class Summary(NamedTuple):
    """A table. ``rows`` returns mappings that have at least the columns.

    ``domains`` are the parts of the image from which the rows follow; empty: all of it.

    With a ``key``, rows that an image no longer contains remain, identified by this column. They
    have the column ``finished_epoch``, 0 while a row may still change. Without a key they go.
    If the table ``is_appended``, the rows of all epochs remain.
    """

    columns: Mapping[str, pa.DataType]
    rows: Callable[[Image], Iterable[Row]]
    domains: tuple[str, ...] = ()
    key: str = ""
    is_appended: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"cluster": TEXT, "as_of_epoch": NUMBER, **self.columns})

    def row(self, cluster: str, epoch: int, values: Row) -> Row:
        """Return the columns of a row."""
        own = {name: values[name] for name in self.columns}
        return {"cluster": cluster, "as_of_epoch": epoch, **own}


def changed(summary: Summary, before: Image | None, image: Image) -> bool:
    """Return whether the rows may have changed.

    Images share unchanged parts, so identity decides.
    """
    if before is None or not summary.domains:
        return True
    return any(getattr(before, name) is not getattr(image, name) for name in summary.domains)


def rows_of(summary: Summary, cluster: str, image: Image) -> list[Row]:
    return [summary.row(cluster, image.epoch, row) for row in summary.rows(image)]


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
    return [SUMMARIES[REQUESTS].row(cluster, each.epoch, _request(each.request)) for each in ended]


def _clusters(image: Image) -> Iterator[Row]:
    topology = image.topology
    yield {
        "cluster_id": image.cluster_id,
        "log_id": image.log_id.hex(),
        "state_id": image.state_id.hex(),
        "features": sorted(image.features.enabled),
        "topology_version": topology.version,
        "fence_version": topology.fence_version,
        "version_since_epoch": topology.since_epoch,
        "coordinator": topology.coordinator.holder,
        "coordinator_term": topology.coordinator.term,
    }


def _nodes(image: Image) -> Iterator[Row]:
    for node in image.membership.nodes.values():
        yield {**asdict(node), "node_state": str(node.state)}


def _keyspaces(image: Image) -> Iterator[Row]:
    for keyspace in image.schema.by_id.values():
        yield {
            **asdict(keyspace),
            "keyspace_name": keyspace.name,
            "replication": msgspec.json.encode(keyspace.replication, order="sorted").decode(),
            "has_tablets": keyspace.tablets,
        }


def _tables(image: Image) -> Iterator[Row]:
    for table in image.schema.tables.values():
        keyspace = image.schema.by_id.get(table.keyspace_id)
        placement = image.ring.placements.get(table.placement)
        own = image.schema.schemas.get(table.table_id)
        yield {
            **asdict(table),
            "table_name": table.name,
            "keyspace_name": "" if keyspace is None else keyspace.name,
            "tablet_count": 0 if placement is None else len(placement),
            "table_kind": "opaque" if own is None else "table" if own.view is None else "view",
            "columns_epoch": 0 if own is None else own.version,
        }


def _table_columns(image: Image) -> Iterator[Row]:
    schema = image.schema
    for table_schema in schema.schemas.values():
        table = schema.tables[table_schema.table_id]
        for position, column in enumerate(table_schema.columns):
            is_clustering = column.kind is ColumnKind.CLUSTERING
            yield {
                "table_id": table.table_id,
                "keyspace_name": schema.by_id[table.keyspace_id].name,
                "table_name": table.name,
                "column_position": position,
                "column_id": column.column_id,
                "column_name": column.name,
                "column_type": column.type,
                "column_kind": str(column.kind),
                "clustering_order": str(column.order) if is_clustering else None,
            }


def _types(image: Image) -> Iterator[Row]:
    for user_type in image.schema.types.values():
        yield {
            "type_id": user_type.type_id,
            "keyspace_name": image.schema.by_id[user_type.keyspace_id].name,
            "type_name": user_type.name,
            "field_names": [field.name for field in user_type.fields],
            "field_types": [field.type for field in user_type.fields],
            "changed_epoch": user_type.version,
        }


def _requests(image: Image) -> Iterator[Row]:
    yield from map(_request, image.requests.requests.values())


def _request(request: Request) -> Row:
    began_ms = request.started_at_ms or request.submitted_at_ms
    return {
        **asdict(request),
        "request_kind": str(request.kind),
        "request_status": str(request.status),
        "error_text": request.error,
        "was_cancelled": request.cancelled,
        "submitted_at": _time(request.submitted_at_ms),
        "started_at": _time(request.started_at_ms),
        "finished_at": _time(request.finished_at_ms),
        "waited_s": _seconds(request.submitted_at_ms, request.started_at_ms),
        "ran_s": _seconds(began_ms, request.finished_at_ms),
    }


def _transitions(image: Image) -> Iterator[Row]:
    for transition in image.topology.transitions.values():
        yield {
            **asdict(transition),
            "transition_kind": str(transition.kind),
            "transition_state": str(transition.state),
            "request_ids": list(transition.request_ids()),
            "node_ids": list(transition.nodes()),
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


def _spread(image: Image) -> Iterator[Row]:
    """Yield the evenness of each placement. A placement without ranges has no rows.

    Normal nodes without ranges count as zero.
    """
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
                "placement": name,
                "replica_role": role,
                "node_count": len(nodes),
                "fewest_ranges": min(ranges),
                "most_ranges": max(ranges),
                "least_share": min(parts),
                "most_share": max(parts),
                "mean_share": sum(parts) / len(nodes),
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


def _width(start: int, end: int) -> int:
    """Return the number of tokens in (start, end].

    ``MIN_TOKEN`` as an end is the end of the ring.
    """
    return (-MIN_TOKEN if end == MIN_TOKEN else end) - start


def _time(at_ms: int) -> datetime | None:
    return time_of(at_ms) if at_ms else None


def _seconds(from_ms: int, to_ms: int) -> float | None:
    """Return the seconds between two times; None until both are set."""
    return (to_ms - from_ms) / 1000 if from_ms and to_ms else None


SUMMARIES: Final[dict[str, Summary]] = {
    "clusters": Summary(
        columns(
            (TEXT, "cluster_id log_id state_id"),
            (TEXTS, "features"),
            (NUMBER, "topology_version fence_version version_since_epoch"),
            (TEXT, "coordinator"),
            (NUMBER, "coordinator_term"),
        ),
        _clusters,
    ),
    "nodes": Summary(
        columns(
            (TEXT, "node_id address dc rack node_state"),
            (NUMBER, "num_tokens shards"),
            (TEXT, "release_version host_id request_id"),
            (NUMBER, "excluded_since cleanup_since"),
        ),
        _nodes,
        ("membership",),
    ),
    "keyspaces": Summary(
        columns(
            (TEXT, "keyspace_id keyspace_name replication placement"),
            (TRUTH, "has_tablets"),
            (NUMBER, "placed_version dropped_version truncated_version"),
        ),
        _keyspaces,
        ("schema",),
    ),
    "tables": Summary(
        columns(
            (TEXT, "table_id table_name keyspace_id keyspace_name placement"),
            (NUMBER, "tablet_count dropped_version truncated_version"),
            (TEXT, "table_kind"),
            (NUMBER, "columns_epoch"),
        ),
        _tables,
        ("schema", "ring"),
    ),
    "columns": Summary(
        columns(
            (TEXT, "table_id keyspace_name table_name"),
            (NUMBER, "column_position column_id"),
            (TEXT, "column_name column_type column_kind clustering_order"),
        ),
        _table_columns,
        ("schema",),
    ),
    "types": Summary(
        columns(
            (TEXT, "type_id keyspace_name type_name"),
            (TEXTS, "field_names field_types"),
            (NUMBER, "changed_epoch"),
        ),
        _types,
        ("schema",),
    ),
    REQUESTS: Summary(
        columns(
            (TEXT, "request_id request_kind request_status node_id keyspace_id table_id"),
            (TEXT, "actor reason error_text"),
            (TRUTH, "was_cancelled"),
            (NUMBER, "submitted_epoch started_epoch finished_epoch"),
            (TIME, "submitted_at started_at finished_at"),
            (FLOAT, "waited_s ran_s"),
        ),
        _requests,
        ("requests",),
        key="request_id",
    ),
    "transitions": Summary(
        columns(
            (TEXT, "transition_id transition_kind transition_state"),
            (TEXTS, "request_ids node_ids"),
            (TEXT, "keyspace_id table_id"),
            (NUMBER, "entered_version entered_epoch"),
            (TEXT, "goes_back_why"),
        ),
        _transitions,
        ("topology",),
    ),
    "ownership": Summary(
        columns(
            (TEXT, "placement node_id replica_role"),
            (NUMBER, "range_count"),
            (FLOAT, "ring_share"),
        ),
        _ownership,
        ("ring",),
    ),
}

SPREAD: Final = Summary(
    columns(
        (TEXT, "placement replica_role"),
        (NUMBER, "node_count fewest_ranges most_ranges"),
        (FLOAT, "least_share most_share mean_share"),
    ),
    _spread,
    ("ring", "membership"),
    is_appended=True,
)
"""Evenness of placements over nodes: a row for each placement, role and time.

``replica_role`` is read or write. A share is a part of the ring. The mean share of a placement is
its replication factor divided by its nodes.
"""
