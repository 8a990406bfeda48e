"""A state as plain structs for the page: pure functions of an image."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from stele.console.maps import TOKENS, map_of
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.topology import Subject
from stele.domain.model.transitions import Transition
from stele.domain.names import TABLET_MAP, UNFINISHED, NodeState, RequestStatus, TransitionState
from stele.domain.ring.placement import WRITES, Placement, rows_of
from stele.domain.ring.ranges import RangeReplicas, upper_bound
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology.operations.base import Operation
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.of_image import topology_answer
from stele.words.explain import Case, KnownAnswers, moved, moved_line, sentences, story
from stele.words.names import departure, what

S = TypeVar("S", bound=msgspec.Struct)

NEWEST_REQUESTS: Final = 200
"""Limit of finished requests that are shown with the state. Older ones are in the history."""
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
MOST_NODES: Final = 64
"""Largest number of nodes to query. The others are shown by the session-guard's liveness."""
MOST_ROWS: Final = 500
"""Limit of the ranges of one node that are listed."""


class MapHead(msgspec.Struct, frozen=True, kw_only=True):
    """A placement that can be drawn: the ring of keyspaces, or tablets of ``name``'s group."""

    placement: str
    name: str
    tablets: bool
    rows: int
    keyspaces: tuple[str, ...]


class MemberSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A node without its tokens. ``number`` is its number in maps; None: it is in none."""

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
    departure: str
    """How the node left; empty while it has not."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state except for the maps themselves."""

    epoch: int
    state_id: str
    cluster: str
    cluster_id: str
    log_id: str
    topology: Any
    coordinator: Any
    commits: Any
    nodes: tuple[MemberSummary, ...]
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


class RequestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its subject in words. ``can_cancel``: a ``cancel`` would be accepted."""

    request_id: str
    kind: str
    status: str
    what: str
    node_id: str
    from_node: str
    to_node: str
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
    steps: tuple[str, ...] = ()
    """States from the request to its end; those of the way back once it is undone."""
    step: int = 0
    """The step that it is in; equal to the number of steps when it is done."""


class RangeSummary(msgspec.Struct, frozen=True, kw_only=True):
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


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``stele why``: all lines, and by request its waits, its advice and its streams.

    ``by_request`` leaves out the progress of streams, which ``streamed`` has in one line.
    """

    lines: tuple[tuple[str, str], ...]
    by_request: dict[str, tuple[str, ...]]
    streamed: dict[str, str]


def copied(kind: type[S], source: object, **others: Any) -> S:
    """Return a struct with ``others``, and with the attributes of ``source`` for other fields."""
    same = {
        name: getattr(source, name)
        for name in kind.__struct_fields__
        if name not in others and hasattr(source, name)
    }
    return kind(**same, **others)


def overview(image: Image, dropped: Mapping[str, str] = NO_NAMES) -> Overview:
    """Return the overview of a state. ``dropped`` are names of dropped keyspaces and tables by id."""
    numbers = image.ring.nodes.numbers
    nodes = (image.membership.nodes[name] for name in sorted(image.membership.nodes))
    return copied(
        Overview,
        topology_answer(image),
        nodes=tuple(
            copied(
                MemberSummary,
                node,
                tokens=len(node.tokens),
                number=numbers.get(node.node_id),
                departure=departure(node, image.requests.requests.get(node.request_id)),
            )
            for node in nodes
        ),
        numbers=image.ring.nodes.names,
        maps=tuple(_maps(image)),
        requests=request_summaries(image, dropped),
        features=tuple(image.features.enabled),
        settings=dict(image.features.settings),
        services=tuple(image.services.services[s] for s in sorted(image.services.services)),
        balancing_off=tuple(_off(image)),
        keyspaces=tuple(sorted(each.name for each in image.schema.by_id.values())),
        tables=tuple(sorted(map(image.schema.full_name, image.schema.tables.values()))),
    )


def request_summaries(
    image: Image, dropped: Mapping[str, str] = NO_NAMES
) -> tuple[RequestSummary, ...]:
    """Return the unfinished requests, then the newest finished ones, each the newest first."""
    names = {**dropped, **image.schema.names_by_id()}
    found = sorted(image.requests.requests.values(), key=lambda r: -r.submitted_epoch)
    over = [r for r in found if r.status not in UNFINISHED][:NEWEST_REQUESTS]
    under_way = [r for r in found if r.status in UNFINISHED]
    return tuple(_request(image, r, names) for r in (*under_way, *over))


def range_summary(image: Image, name: str, place: int) -> RangeSummary | None:
    """Return a row of a map by its place, or None."""
    placement = map_of(image, name)
    if placement is None or not 0 <= place < len(placement):
        return None
    row = _row_at(placement, place)
    transitions = tuple(
        t.transition_id
        for t in image.topology.open()
        if name in t.plans and any(_meet(row, each) for each in t.plans[name].rows)
    )
    return copied(
        RangeSummary,
        row,
        placement=name,
        name=map_name(image, name),
        place=place,
        start=str(row.start),
        end=str(row.end),
        transitions=transitions,
        repaired_ms=_repaired_ms(image, name, place, len(placement)),
    )


def rows_of_node(image: Image, node_id: str) -> dict[str, dict[str, object]]:
    """Return, by map, the number of rows that a node writes and the places of the first ones."""
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


def wait_report(image: Image, progress: Progress | None) -> WaitReport:
    """Return the sentences of ``stele why`` about all unfinished requests."""
    requests = [r for r in image.requests.requests.values() if r.status in UNFINISHED]
    requests.sort(key=lambda r: (r.submitted_epoch, r.request_id))
    topology = topology_answer(image)
    known = KnownAnswers(
        topology, requests, [], image.schema.names_by_id(), progress, groups_of(image)
    )
    work = () if progress is None else progress.transitions
    streams = {line for t in work if t.session for line in moved(t)}
    return WaitReport(
        lines=tuple(story(known)),
        by_request={
            r.request_id: tuple(
                each for each in sentences(r, topology, progress) if each not in streams
            )
            for r in requests
        },
        streamed={i: moved_line(t) for t in work if t.session for i in t.request_ids},
    )


def addresses_of(image: Image) -> dict[str, str]:
    """Return the addresses of up to ``MOST_NODES`` nodes that should answer, by node, sorted."""
    nodes = image.membership.nodes
    here = (n for n in nodes.values() if n.state is not NodeState.LEFT and not n.excluded)
    urls = sorted((node.node_id, node.address) for node in here if node.address)
    return dict(urls[:MOST_NODES])


def groups_of(image: Image) -> list[list[str]]:
    """Return groups of tables that share tablets. The owner of the map is first."""
    schema = image.schema
    bases = (schema.tables[base_id] for base_id in sorted(schema.colocated))
    return [[data.name for data in schema.using(base.placement)] for base in bases]


def map_name(image: Image, placement: str) -> str:
    """Return a readable name of a map: its tables, or the ring by its replication."""
    if placement == TOKENS:
        return "tokens of all nodes"
    return _map_name(placement, [data.name for data in image.schema.using(placement)])


def _map_name(placement: str, names: Iterable[str]) -> str:
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
    found = list[MapHead]()
    for name, placement in placements.items():
        keyspaces = tuple(data.name for data in image.schema.using(name))
        found.append(
            MapHead(
                placement=name,
                name=_map_name(name, keyspaces),
                tablets=name.startswith(TABLET_MAP),
                rows=len(placement),
                keyspaces=keyspaces,
            )
        )
    yield from sorted(found, key=lambda each: (each.tablets, each.name, each.placement))


def steps_of(request: Request, transition: Transition | None) -> tuple[tuple[str, ...], int]:
    """Return the states of a request in their order, and the position of its present one.

    The position of a finished request is the number of states. Once a transition goes back, the
    states are those of its way back.
    """
    operation = OPERATIONS[request.kind]
    pending, done = RequestStatus.PENDING.value, RequestStatus.DONE.value
    if transition is not None:
        states, end = _states(operation, operation.first, transition.subjects), done
        if transition.state not in states:
            states = _states(operation, transition.state, transition.subjects)
            end = RequestStatus.CANCELLED.value
        steps = (pending, *states, end)
        return steps, steps.index(transition.state)
    states = _states(operation, operation.first, ()) or (RequestStatus.RUNNING.value,)
    steps = (pending, *states, done)
    at = {RequestStatus.PENDING: 0, RequestStatus.RUNNING: 1}
    return steps, at.get(request.status, len(steps))


def _states(
    operation: Operation, first: TransitionState | None, subjects: tuple[Subject, ...]
) -> tuple[str, ...]:
    """Return the states of an operation from ``first`` on, to the end."""
    states, state = list[str](), first
    while state is not None:
        states.append(state.value)
        state = operation.following(state, subjects)
    return tuple(states)


def _request(image: Image, request: Request, names: dict[str, str]) -> RequestSummary:
    transition = image.topology.of_request(request.request_id)
    case = Case(request, transition, None)
    steps, step = steps_of(request, transition)
    return copied(
        RequestSummary,
        request,
        what=what(request, names),
        transition_id="" if transition is None else transition.transition_id,
        state="" if transition is None else transition.state,
        entered_epoch=0 if transition is None else transition.entered_epoch,
        mark="" if transition is None else transition.mark,
        can_cancel=request.status in UNFINISHED and bool(case.undo()),
        steps=steps,
        step=step,
    )


def _row_at(placement: Placement, place: int) -> RangeReplicas:
    rows = placement.table.all()
    ends = np.append(rows.keys[1:], rows.keys[:1])[place : place + 1]
    return next(iter(rows_of(rows.cut(place, place + 1), ends, placement.nodes)))


def _meet(row: RangeReplicas, planned: TransitionRow) -> bool:
    """Return True if the row and the planned row share a token."""
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
