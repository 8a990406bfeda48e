"""Keeps a router current over HTTP: the state once, then the changes as server-sent events.

The stream lists each epoch and the sections that it changes. A diff is requested only if a change
may have moved a key, and covers all epochs received meanwhile. If the result is not certain to
continue the known image, the state is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import msgspec
from immutables import Map

from stele.client import SILENT_S, HistoryChangedError, HistoryFollower, ServiceAwayError
from stele.domain.addresses import why_no_address
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.cluster import ClusterImage
from stele.domain.model.membership import MembershipImage, Node
from stele.domain.model.ring import RingImage
from stele.domain.model.schema import Keyspace, SchemaImage, Table
from stele.domain.model.schema_objects import TableSchema
from stele.domain.model.topology import Versions
from stele.domain.model.transitions import TopologyImage
from stele.domain.ring.placement import Placement, apply
from stele.domain.ring.ranges import RangeReplicas, range_of
from stele.domain.tables import row_json
from stele.router.router import READY_S, Router, kept_current, listed
from stele.runtime.transport import HttpTransport, Transport

# Responses of metadata-log as images, and the effect of a change on an image: pure functions.


Json = dict[str, Any]
R = TypeVar("R", bound=msgspec.Struct)
replace = msgspec.structs.replace

ROUTED_BY: Final = frozenset(
    ("topology", "nodes", "keyspaces", "tables", "table_schemas", "placements")
)
"""Sections of the state that requests are made from. Other changes only advance the epoch."""


class RoutingState(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``/v1/state`` that routing needs."""

    epoch: int
    state_id: str
    cluster: str
    cluster_id: str
    log_id: str
    topology: Versions
    nodes: tuple[Node, ...]
    keyspaces: tuple[Keyspace, ...]
    tables: tuple[Table, ...]
    placements: dict[str, tuple[RangeReplicas, ...]]
    table_schemas: tuple[TableSchema, ...] = ()


class ChangeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of ``/v1/changes``: one epoch, and the sections that it changes."""

    epoch: int
    state_id: str
    changes: dict[str, msgspec.Raw]

    @property
    def routes(self) -> bool:
        """Return whether the change may have moved a key, or changed columns."""
        return not ROUTED_BY.isdisjoint(self.changes)


def image_of(state: RoutingState) -> Image:
    """Return the image as far as routing needs it. The other domains are empty."""
    return replace(
        EMPTY_FOR_FOLLOWERS,
        epoch=state.epoch,
        state_id=bytes.fromhex(state.state_id),
        founding=ClusterImage(
            name=state.cluster, cluster_id=state.cluster_id, log_id=bytes.fromhex(state.log_id)
        ),
        membership=MembershipImage(Map({node.node_id: node for node in state.nodes})),
        schema=_schema(state.keyspaces, state.tables, state.table_schemas),
        ring=RingImage(
            placements=Map({n: Placement.of(rows) for n, rows in state.placements.items()})
        ),
        topology=_topology(EMPTY_FOR_FOLLOWERS.topology, state.topology),
    )


def moved_on(image: Image, change: ChangeEvent) -> Image:
    """Return the image at the epoch of a change that moves no key."""
    return replace(image, epoch=change.epoch, state_id=bytes.fromhex(change.state_id))


def with_diff(image: Image, diff: Json, to: ChangeEvent) -> Image:
    """Return the image at the epoch ``to``, after applying ``diff`` to ``image``.

    Fields that this build lacks are ignored. A diff of another shape, or one that does not fit,
    raises any exception.
    """
    schema = image.schema
    keyspaces = _rows({**schema.by_id}, diff["keyspaces"], "keyspace_id", Keyspace)
    tables = _rows({**schema.tables}, diff["tables"], "table_id", Table)
    columns = diff.get("table_schemas", _NOTHING)
    table_schemas = _rows({**schema.schemas}, columns, "table_id", TableSchema)
    nodes = _rows({**image.membership.nodes}, diff["nodes"], "node_id", Node)
    versions = {n: getattr(image.topology, n) for n in Versions.__struct_fields__}
    versions |= {n: change["after"] for n, change in diff["topology"].items()}
    changed = replace(
        image,
        membership=MembershipImage(Map(nodes)),
        topology=_topology(image.topology, msgspec.convert(versions, Versions)),
    )
    if any(each != _NOTHING for each in (diff["keyspaces"], diff["tables"], columns)):
        of_tables = tables.values(), table_schemas.values()
        changed = replace(changed, schema=_schema(keyspaces.values(), *of_tables))
    if diff["placements"]:
        changed = replace(changed, ring=_ring(image.ring, diff["placements"]))
    return moved_on(changed, to)


_NOTHING: Final[Json] = {"added": [], "removed": [], "changed": []}


def _ring(ring: RingImage, diff: Json) -> RingImage:
    """Return the ring after a diff of the placements.

    A placement without added rows was removed.
    """
    placements = ring.placements
    for name, rows in diff.items():
        added = msgspec.convert(rows["added"], list[RangeReplicas])
        removed = msgspec.convert(rows["removed"], list[RangeReplicas])
        if not added:
            placements = placements.delete(name)
        elif name in placements:
            gone = [range_of(row) for row in removed]
            placements = placements.set(name, apply(placements[name], gone, added))
        else:
            placements = placements.set(name, Placement.of(added))
    return RingImage(placements=placements)


def _rows(known: dict[str, R], diff: Json, key: str, kind: type[R]) -> dict[str, R]:
    for row in diff["removed"]:
        del known[row[key]]
    for row in diff["added"]:
        known[row[key]] = msgspec.convert(row, kind)
    for row in diff["changed"]:
        fields = {name: change["after"] for name, change in row["fields"].items()}
        known[row[key]] = msgspec.convert({**row_json(known[row[key]]), **fields}, kind)
    return known


def _schema(
    keyspaces: Iterable[Keyspace], tables: Iterable[Table], table_schemas: Iterable[TableSchema]
) -> SchemaImage:
    by_id = {keyspace.keyspace_id: keyspace for keyspace in keyspaces}
    of_tables = {table.table_id: table for table in tables}
    return SchemaImage(
        by_id=Map(by_id),
        ids=Map({keyspace.name: each for each, keyspace in by_id.items()}),
        tables=Map(of_tables),
        schemas=Map({schema.table_id: schema for schema in table_schemas}),
        table_ids=Map(
            {f"{by_id[t.keyspace_id].name}.{t.name}": each for each, t in of_tables.items()}
        ),
    )


def _topology(topology: TopologyImage, versions: Versions) -> TopologyImage:
    return replace(topology, **row_json(versions))


LACKS_S: Final = 1.0
"""Time without news after which another service is used, while an epoch is awaited; seconds."""
LINE_BYTES: Final = 8 * 1024 * 1024
"""Longest line of a stream, in bytes.

An event is one line, and long if it contains thousands of requests.
"""


@asynccontextmanager
async def http_router(
    urls: str | Sequence[str], ready_s: float = READY_S, transport: Transport | None = None
) -> AsyncIterator[Router]:
    """Run a router inside the block that follows metadata-log.

    It uses the first of ``urls`` that answers.

    A string contains addresses separated by commas, as ``STELE_METADATA_LOG_URLS`` does.
    ``transport`` is closed at the end. The default one opens real connections.

    Raises NotReady when no state was read within ``ready_s`` seconds, and ValueError for an invalid
    address.
    """
    addresses = listed(urls)
    if not addresses:
        raise ValueError("http_router needs the address of a metadata-log at least")
    for url in addresses:
        why = why_no_address(url)
        if why:
            raise ValueError(f"'{url}' is not an address of a metadata-log: {why}")
    router = Router()
    http = transport or HttpTransport(SILENT_S)
    try:
        async with kept_current(router, _Source(router, http, addresses).run(), ready_s):
            yield router
    finally:
        await http.close()


class _Source(HistoryFollower):
    """Keeps the router's image current from one metadata-log at a time."""

    def __init__(self, router: Router, http: Transport, urls: Sequence[str]) -> None:
        super().__init__(http, urls, self._note, LINE_BYTES)
        self._router = router
        self._newest: ChangeEvent | None = None
        self._routes = False
        self._came = asyncio.Event()
        router.on_awaited = self._came.set

    def _note(self, trouble: str) -> None:
        self._router.trouble = trouble

    def _take(self, image: Image) -> None:
        self._router.take(image)
        self._router.trouble = ""

    async def read_state(self, url: str) -> None:
        body = await self.get(url, "/v1/state", {"level": "barrier"})
        image = await asyncio.to_thread(
            lambda: image_of(msgspec.json.decode(body, type=RoutingState))
        )
        why = self._router.refuses(image)
        if why:
            raise HistoryChangedError(why)
        self._take(image)

    async def follow(self, url: str) -> None:
        self._take_newest()
        image, lacks = self._router.image, _Lacks(self._router)
        on_event = partial(self._on_event, count(image.epoch + 1))
        async with self.reading(url, "/v1/changes", image, on_event) as reading:
            reading.add_done_callback(self._ended)
            while True:
                # Clear before taking: an event that arrives later sets it again and is not lost.
                self._came.clear()
                to, routes = self._take_newest()
                if to is not None:
                    image = await self._at(url, image, to) if routes else moved_on(image, to)
                    self.note_progress()
                    self._take(image)
                elif reading.done():
                    reading.result()
                    raise ServiceAwayError("its stream has ended")
                else:
                    await lacks.wait(self._came)

    def _on_event(self, following: Iterator[int], data: bytes) -> None:
        """Store the newest event for ``follow``.

        ``_routes`` becomes true if any event since the last one taken may have moved a key.
        """
        change, due = msgspec.json.decode(data, type=ChangeEvent), next(following)
        # A missing epoch could hide a moved key (I9).
        if change.epoch != due:
            raise HistoryChangedError(f"epoch {change.epoch} came where {due} was to come")
        self._newest, self._routes = change, self._routes or change.routes
        self._came.set()

    def _ended(self, reading: asyncio.Task[None]) -> None:
        """Mark the task's error as retrieved and wake ``follow``, which raises it."""
        if not reading.cancelled():
            reading.exception()
        self._came.set()

    def _take_newest(self) -> tuple[ChangeEvent | None, bool]:
        taken = self._newest, self._routes
        # Both at once: the flag covers all events up to the newest one.
        self._newest, self._routes = None, False
        return taken

    async def _at(self, url: str, image: Image, to: ChangeEvent) -> Image:
        body = await self.get(url, "/v1/diff", {"from": image.epoch, "to": to.epoch})
        try:
            return with_diff(image, msgspec.json.decode(body), to)
        except Exception as error:  # of any shape
            raise HistoryChangedError(
                f"the difference to epoch {to.epoch} does not fit: {error!r}"
            ) from error


class _Lacks:
    """Detects that an awaited epoch does not arrive, although the service's stream is open."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._since: tuple[int, float] = 0, 0.0
        """The router's epoch when the wait began, and the loop time of that moment."""

    async def wait(self, came: asyncio.Event) -> None:
        """Wait until an event arrives.

        Raises ServiceAwayError when another service may have the awaited epoch.
        """
        router, now_s = self._router, asyncio.get_running_loop().time()
        if router.awaited <= router.epoch:
            self._since = 0, 0.0
            await came.wait()
            return
        if not self._since[1] or self._since[0] != router.epoch:
            self._since = router.epoch, now_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._since[1] + LACKS_S):
                await came.wait()
                return
        if router.awaited > router.epoch:
            raise ServiceAwayError(
                f"it has not given epoch {router.awaited}, which a request waits for"
            )
