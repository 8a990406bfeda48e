"""What the page shows of a state, as plain structs: pure functions of an image."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from stele.console.maps import TOKENS, map_of
from stele.domain.image import Image
from stele.domain.names import UNFINISHED
from stele.domain.requests.facts import Request
from stele.domain.ring.placement import Placement, rows_of
from stele.domain.ring.ranges import RangeReplicas, upper_bound
from stele.domain.ring.replicas import WRITES
from stele.domain.ring.transition import TransitionRow
from stele.domain.schema.facts import TABLET_MAP
from stele.domain.topology.domain import summary_of, versions_of
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.metadata_log import TopologyAnswer
from stele.words.explain import Case, moved_line
from stele.words.requests import what
from stele.words.why import Known, sentences, story

NEWEST_REQUESTS: Final = 200
"""So many that are over are shown with the state; older ones are in the history."""
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
MOST_ROWS: Final = 500
"""Ranges of one node that are listed."""


class MapHead(msgspec.Struct, frozen=True, kw_only=True):
    """A placement that can be drawn: the ring of keyspaces, or the tablets of ``name`` and its company."""

    placement: str
    name: str
    tablets: bool
    rows: int
    keyspaces: tuple[str, ...]


class NodeShown(msgspec.Struct, frozen=True, kw_only=True):
    """A node without its tokens. ``number`` is the one that maps name it by; None: none does."""

    node_id: str
    address: str
    dc: str
    rack: str
    state: str
    tokens: int
    shards: int
    excluded: bool
    cleanup_since: int
    release_version: str
    number: int | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All but the maps themselves."""

    epoch: int
    state_id: str
    cluster: str
    cluster_id: str
    log_id: str
    topology: Any
    coordinator: Any
    commits: Any
    nodes: tuple[NodeShown, ...]
    numbers: tuple[str, ...]
    maps: tuple[MapHead, ...]
    transitions: tuple[Any, ...]
    requests: tuple[Any, ...]
    features: tuple[str, ...]
    settings: dict[str, str]
    services: tuple[Any, ...]
    balancing_off: tuple[str, ...]
    keyspaces: tuple[str, ...]
    tables: tuple[str, ...]


class RequestShown(msgspec.Struct, frozen=True, kw_only=True):
    """A request with what it is about in words; ``can_cancel`` says whether ``cancel`` would be taken."""

    request_id: str
    kind: str
    status: str
    what: str
    node_id: str
    actor: str
    reason: str
    error: str
    submitted_epoch: int
    started_epoch: int
    finished_epoch: int
    submitted_at_ms: int
    started_at_ms: int
    finished_at_ms: int
    transition_id: str = ""
    state: str = ""
    entered_epoch: int = 0
    mark: str = ""
    can_cancel: bool = False


class RowShown(msgspec.Struct, frozen=True, kw_only=True):
    """One range or tablet."""

    placement: str
    name: str
    place: int
    start: str
    end: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    other: tuple[str, ...]
    shards: tuple[int, ...]
    version: int
    version_before: int
    transitions: tuple[str, ...]
    repaired_ms: int = 0


class WhyShown(msgspec.Struct, frozen=True, kw_only=True):
    """What ``stele why`` says: all of it, and by request the sentences and how much has been streamed."""

    lines: tuple[tuple[str, str], ...]
    by_request: dict[str, tuple[str, ...]]
    streamed: dict[str, str]


def overview(image: Image, gone: Mapping[str, str] = NO_NAMES) -> Overview:
    """``gone`` are names by id of what stands no more."""
    numbers = image.ring.nodes.numbers
    nodes = (image.membership.nodes[name] for name in sorted(image.membership.nodes))
    return Overview(
        epoch=image.epoch,
        state_id=image.state_id.hex(),
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        topology=versions_of(image.topology),
        coordinator=image.topology.coordinator,
        commits=image.commits,
        nodes=tuple(
            NodeShown(
                node_id=node.node_id,
                address=node.address,
                dc=node.dc,
                rack=node.rack,
                state=node.state,
                tokens=len(node.tokens),
                shards=node.shards,
                excluded=node.excluded,
                cleanup_since=node.cleanup_since,
                release_version=node.release_version,
                number=numbers.get(node.node_id),
            )
            for node in nodes
        ),
        numbers=image.ring.nodes.names,
        maps=tuple(_maps(image)),
        transitions=tuple(summary_of(t) for t in image.topology.open()),
        requests=requests_shown(image, gone),
        features=tuple(image.features.enabled),
        settings=dict(image.features.settings),
        services=tuple(image.services.services[s] for s in sorted(image.services.services)),
        balancing_off=tuple(_off(image)),
        keyspaces=tuple(sorted(each.name for each in image.schema.by_id.values())),
        tables=tuple(sorted(map(image.schema.full_name, image.schema.tables.values()))),
    )


def requests_shown(image: Image, gone: Mapping[str, str] = NO_NAMES) -> tuple[RequestShown, ...]:
    """Those under way, and the newest that are over; the newest first."""
    names = {**gone, **names_by_id(image)}
    found = sorted(image.requests.requests.values(), key=lambda r: -r.submitted_epoch)
    over = [r for r in found if r.status not in UNFINISHED][:NEWEST_REQUESTS]
    under_way = [r for r in found if r.status in UNFINISHED]
    return tuple(_request(image, r, names) for r in (*under_way, *over))


def row_shown(image: Image, name: str, place: int) -> RowShown | None:
    """A row of a map by its place; None when there is none."""
    placement = map_of(image, name)
    if placement is None or not 0 <= place < len(placement):
        return None
    row = _row_at(placement, place)
    transitions = tuple(
        t.transition_id
        for t in image.topology.open()
        if name in t.plans and any(_meet(row, each) for each in t.plans[name].rows)
    )
    return RowShown(
        placement=name,
        name=map_name(image, name),
        place=place,
        start=str(row.start),
        end=str(row.end),
        reads=row.reads,
        writes=row.writes,
        other=row.other,
        shards=row.shards,
        version=row.version,
        version_before=row.version_before,
        transitions=transitions,
        repaired_ms=_repaired_ms(image, name, place, len(placement)),
    )


def rows_of_node(image: Image, node_id: str) -> dict[str, dict[str, object]]:
    """By map: how many of its rows a node writes, and the places of the first ones."""
    number = image.ring.nodes.numbers.get(node_id)
    if number is None:
        return {}
    found: dict[str, dict[str, object]] = {}
    for name in sorted(image.ring.placements):
        writes = image.ring.placements[name].table.all().values[WRITES]
        places = np.flatnonzero((writes == number).any(axis=1))
        if len(places):
            shown = map_name(image, name)
            found[name] = {
                "name": shown,
                "tablets": name.startswith(TABLET_MAP),
                "rows": len(places),
                "of": len(image.ring.placements[name]),
                "places": places[:MOST_ROWS].tolist(),
            }
    return found


def why_shown(image: Image, progress: Progress | None) -> WhyShown:
    """The sentences of ``stele why`` about all that is under way."""
    requests = [r for r in image.requests.requests.values() if r.status in UNFINISHED]
    requests.sort(key=lambda r: (r.submitted_epoch, r.request_id))
    topology = topology_of(image)
    known = Known(topology, requests, [], names_by_id(image), progress, groups_of(image))
    work = () if progress is None else progress.transitions
    return WhyShown(
        lines=tuple(story(known)),
        by_request={r.request_id: tuple(sentences(r, topology, progress)) for r in requests},
        streamed={i: moved_line(t) for t in work if t.session for i in t.request_ids},
    )


def topology_of(image: Image) -> TopologyAnswer:
    """As metadata-log answers it."""
    return TopologyAnswer(
        epoch=image.epoch,
        state_id=image.state_id.hex(),
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        topology=versions_of(image.topology),
        coordinator=image.topology.coordinator,
        transitions=tuple(summary_of(t) for t in image.topology.open()),
        commits=image.commits,
    )


def names_by_id(image: Image) -> dict[str, str]:
    """Of keyspaces and tables."""
    schema = image.schema
    return {
        **{each: keyspace.name for each, keyspace in schema.by_id.items()},
        **{each: schema.full_name(table) for each, table in schema.tables.items()},
    }


def groups_of(image: Image) -> list[list[str]]:
    """Tables that have the same tablets; that with which the others are co-located is first."""
    schema = image.schema
    placements = (table.placement for table in schema.with_tablets())
    found = ([data.name for data in schema.using(name)] for name in dict.fromkeys(placements))
    return [names for names in found if len(names) > 1]


def map_name(image: Image, placement: str) -> str:
    """For people: the tables of a tablet map, or the ring by its replication."""
    if placement == TOKENS:
        return "tokens of all nodes"
    names = [data.name for data in image.schema.using(placement)]
    if placement.startswith(TABLET_MAP):
        return ", ".join(names) or placement
    return f"ring {placement}"


def _maps(image: Image) -> Iterable[MapHead]:
    placements = image.ring.placements
    tokens = map_of(image, TOKENS)
    if tokens is not None:
        yield MapHead(
            placement=TOKENS,
            name=map_name(image, TOKENS),
            tablets=False,
            rows=len(tokens),
            keyspaces=(),
        )
    for name in sorted(placements, key=lambda n: (n.startswith(TABLET_MAP), map_name(image, n))):
        yield MapHead(
            placement=name,
            name=map_name(image, name),
            tablets=name.startswith(TABLET_MAP),
            rows=len(placements[name]),
            keyspaces=tuple(data.name for data in image.schema.using(name)),
        )


def _request(image: Image, request: Request, names: dict[str, str]) -> RequestShown:
    transition = image.topology.of_request(request.request_id)
    case = Case(request, transition, None)
    return RequestShown(
        request_id=request.request_id,
        kind=request.kind,
        status=request.status,
        what=what(request, names),
        node_id=request.node_id,
        actor=request.actor,
        reason=request.reason,
        error=request.error,
        submitted_epoch=request.submitted_epoch,
        started_epoch=request.started_epoch,
        finished_epoch=request.finished_epoch,
        submitted_at_ms=request.submitted_at_ms,
        started_at_ms=request.started_at_ms,
        finished_at_ms=request.finished_at_ms,
        transition_id="" if transition is None else transition.transition_id,
        state="" if transition is None else transition.state,
        entered_epoch=0 if transition is None else transition.entered_epoch,
        mark="" if transition is None else transition.mark,
        can_cancel=request.status in UNFINISHED and bool(case.undo()),
    )


def _row_at(placement: Placement, place: int) -> RangeReplicas:
    rows = placement.table.all()
    ends = np.append(rows.keys[1:], rows.keys[:1])[place : place + 1]
    return next(iter(rows_of(rows.cut(place, place + 1), ends, placement.nodes)))


def _meet(row: RangeReplicas, planned: TransitionRow) -> bool:
    """Whether they share a token."""
    return row.start < upper_bound(planned.end) and planned.start < upper_bound(row.end)


def _repaired_ms(image: Image, name: str, place: int, count: int) -> int:
    table = image.schema.tables.get(name.removeprefix(TABLET_MAP))
    if table is None or not name.startswith(TABLET_MAP):
        return 0
    return int(image.repairs.of(table.table_id, count)[place])


def _off(image: Image) -> Iterable[str]:
    schema = image.schema
    if schema.balancing.off_since:
        yield "the cluster"
    yield from (k.name for k in schema.by_id.values() if k.balancing.off_since)
    yield from (schema.full_name(t) for t in schema.tables.values() if t.balancing.off_since)
