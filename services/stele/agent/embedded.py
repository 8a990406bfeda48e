"""The whole agent around a store: it joins, judges requests, streams rows and reports the load.

    raise SystemExit(run_store("shelf", Shelf, routes))

``Shelf(path)`` is a ``stores.Store``. ``routes(member, shelf)`` returns the HTTP routes that
clients use. A store with its own server and main function uses ``embedded`` instead. It serves
``member.routes()`` beside its own routes.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stele.agent.agent import Agent, kafka_agent
from stele.agent.columns import OnColumns, check_columns, watch_columns
from stele.agent.gate import CATCHING_UP
from stele.agent.identity import DataDirectory, bind, boot
from stele.agent.judging import Judge, Refusal, Routing
from stele.agent.load import HeldTablets, disk_of, reporting_load
from stele.agent.member import Membership, health_of, membership, shut_out
from stele.agent.orders import OrderHandler
from stele.agent.probing import (
    Refused,
    check_host,
    check_log,
    check_meant,
    holds_route,
    judge_route,
    row_route,
)
from stele.agent.ranges import OnRanges, watch_ranges
from stele.agent.settings import AgentSettings
from stele.agent.stores import Store, resizes_of, spans_of
from stele.agent.transfers import (
    PAGES_PATH,
    Transfers,
    decode_ask,
    encode,
    handlers_of,
)
from stele.domain.image import Image
from stele.domain.model.schema_objects import TableSchema
from stele.domain.names import OrderKind
from stele.domain.routed import HOST, LOG, REPLICA, Routed
from stele.domain.tablets.maps import range_of
from stele.runtime import http
from stele.runtime.http import ErrorCode, HttpError
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, locked, run_service, started
from stele.runtime.transport import Transport

STORE_FILE: Final = "store"
S = TypeVar("S", bound=Store)


class Member:
    """The node that a store is. Use it in the event loop of its ``embedded`` block."""

    def __init__(
        self, member: Membership, agent: Agent, judge: Judge, transfers: Transfers
    ) -> None:
        self.agent = agent
        self.membership = member
        self._judge = judge
        self._transfers = transfers

    @property
    def node_id(self) -> str:
        return self.agent.node_id

    @property
    def image(self) -> Image:
        """The state of the cluster at the newest epoch that was read."""
        return self.agent.image

    def table_schema(self, table: str) -> TableSchema | None:
        """Return the columns of ``keyspace.table`` at the newest epoch that was read.

        None is returned for a table without columns, and for one that does not exist.
        """
        found = self.image.schema.table_named(table)
        return None if found is None else self.image.schema.schemas.get(found.table_id)

    def newer_table_version(self, routed: Routed) -> int:
        """Return the version of the table's columns if the sender's is older, and otherwise 0.

        The store sends it back, and the sender reads the log up to this epoch.
        """
        return self._judge.newer_table_version(routed)

    def check_columns(self, routed: Routed, row: bytes) -> None:
        """Check that ``row`` is a JSON object of columns of the table. Values are not checked.

        A table without columns takes any bytes. Call it inside ``request``, which reads the log up
        to the sender's columns. Raises HttpError with the table's version.
        """
        schema = self.image.schema.columns_of(routed.data_id)
        if schema is not None:
            check_columns(schema, row)

    @asynccontextmanager
    async def request(self, routed: Routed) -> AsyncIterator[None]:
        """Check a request before the work inside the block and again after it.

        Reply after the block.

        No epoch is applied between the first check and the block's first ``await``: an effect
        belongs there. An effect that waits must be checked again in its own turn (``check``).

        Raises Refused and HttpError. The work must not be acknowledged then.
        """
        self._check_takes(routed)
        await self._judge.catch_up([routed])
        # No ``await`` may come between this check and the block: it must hold for the first effect.
        self.check(routed)
        hold = self.agent.hold(routed.version, routed.data_id, routed.token)
        try:
            yield
            # The fence may have moved while the block ran; then the work must not be acknowledged
            # (I6).
            self._check_serves(routed.log_id)
            self._refuse(self._judge.fenced(routed))
        finally:
            self.agent.release(hold)

    def check(self, routed: Routed) -> None:
        """Check a request in the turn of its effect. Raises Refused, HttpError."""
        self._check_serves(routed.log_id)
        self._refuse(self._judge.refusal(routed))

    def routes(self) -> list[BaseRoute]:
        """Return the routes for other nodes and tools, to be served at the advertised address."""
        follower = self.membership.follower
        return [
            Route(PAGES_PATH, self._give, methods=["POST"]),
            judge_route(self._judge, self._check_takes),
            holds_route(self._transfers.has_rows),
            position_route("node", self.node_id, follower),
            recent_route(
                self.membership.followed.recent.records, self.membership.directory.promised
            ),
        ]

    def row_route(self) -> BaseRoute:
        """Return the route on which ``stele conformance`` checks the rules for columns.

        A store serves it beside ``routes`` if it calls ``check_columns`` before each write.
        """
        return row_route(self._judge, self._check_takes, self.check_columns)

    def health(self) -> http.Health:
        return health_of(
            self.node_id,
            self.membership.followed,
            self.membership.gate,
            unknown_data=self.agent.unknown_data(),
        )

    async def _give(self, request: Request) -> Response:
        """Answer another node's request for pages. Raises HttpError."""
        check_meant(self.node_id, request.headers.get(REPLICA, ""))
        check_host(self.node_id, self.agent.host_id, request.headers.get(HOST, ""))
        self._check_serves(request.headers.get(LOG, ""))
        try:
            ask = decode_ask(await request.body())
        except msgspec.DecodeError as error:
            text = f"The body does not ask for pages: {error}."
            raise HttpError(400, ErrorCode.INVALID_REQUEST, text) from error
        given = await self._transfers.give(ask)
        return Response(encode(given), media_type="application/msgpack")

    def _check_takes(self, routed: Routed) -> None:
        """Check that this node serves and is the one that the sender means. Raises HttpError."""
        check_meant(self.node_id, routed.replica)
        check_host(self.node_id, self.agent.host_id, routed.host_id)
        self._check_serves(routed.log_id)

    def _check_serves(self, log_id: str) -> None:
        """Check that the node serves data and that the sender follows the same log.

        Raises HttpError.
        """
        out = shut_out(self.node_id, self.image, self.membership.gate)
        if out is not None:
            raise HttpError(503, out.code, out.message, hint=out.hint or "Ask another node.")
        check_log(self.image.log_id.hex(), log_id)

    def _refuse(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise Refused(refusal)


def open_bound(directory: DataDirectory, open_store: Callable[[Path], S]) -> S:
    """Open the store of a data directory, which the first start creates.

    Raises ConfigurationError when the data belongs to another node.
    """
    opened = dict[Path, S]()

    def at(path: Path) -> S:
        if path not in opened:
            opened[path] = open_store(path)
        return opened[path]

    path = bind(
        directory,
        lambda path: at(path).host_id(),
        lambda path, host: at(path).claim(host),
        lambda path: at(path).data_ids(),
    )
    return at(path)


@asynccontextmanager
async def embedded(
    settings: AgentSettings,
    directory: DataDirectory,
    store: Store,
    address: str,
    on_ranges: OnRanges | None = None,
    on_columns: OnColumns | None = None,
) -> AsyncIterator[Member]:
    """Run a store as a member inside the block.

    ``member.membership.admitting(stop)`` lets it join.

    ``on_ranges`` is called with the ranges and tablets that it has, and with each change.
    ``on_columns`` is called with the tables that have columns, and with each change.
    """
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(membership(settings, directory, address))
        member = await stack.enter_async_context(working(settings, node, store))
        await stack.enter_async_context(reporting(settings, member, store))
        if on_ranges is not None:
            watch_ranges(node.node_id, node.follower, on_ranges)
        if on_columns is not None:
            watch_columns(node.follower, on_columns)
        yield member


@asynccontextmanager
async def working(
    settings: AgentSettings, node: Membership, store: Store, transport: Transport | None = None
) -> AsyncIterator[Member]:
    """Run the agent of a member, which executes orders on the store.

    It calls other nodes over ``transport``.
    """
    follower, node_id = node.follower, node.node_id
    made = list[Member]()
    async with AsyncExitStack() as stack:

        def handlers(agent: Agent) -> Mapping[OrderKind, OrderHandler]:
            judge = Judge(node_id, follower, Routing(follower), agent, clients=True)
            transfers = Transfers(agent, judge, store, transport)
            stack.push_async_callback(transfers.close)
            made.append(Member(node, agent, judge, transfers))
            return handlers_of(node_id, follower, agent, store, transfers)

        await stack.enter_async_context(
            kafka_agent(
                settings.brokers,
                node.directory,
                node.gate,
                follower,
                handlers,
                settings.heartbeat_interval_s,
                resizes_of(store),
            )
        )
        yield made[0]


@asynccontextmanager
async def reporting(settings: AgentSettings, member: Member, store: Store) -> AsyncIterator[None]:
    """Report the member's tablet sizes and free space to the balancer inside the block."""
    folder = member.membership.directory.folder
    async with reporting_load(
        settings.brokers,
        settings.cluster,
        member.agent,
        partial(_measured, store),
        tuple,
        partial(disk_of, folder, capacity_bytes=settings.data_file_capacity),
        settings.load_interval_s,
    ):
        yield


async def _measured(store: Store, _: Image, held: HeldTablets) -> list[int]:
    ranges = [range_of(held.of, tablet) for tablet in held.tablets]
    return [store.size_bytes(span) for span in spans_of([held.data_id], ranges)]


def run_store(
    name: str,
    open_store: Callable[[Path], S],
    routes: Callable[[Member, S], Sequence[BaseRoute]],
    on_ranges: Callable[[S], OnRanges] | None = None,
    on_columns: Callable[[S], OnColumns] | None = None,
) -> int:
    """Run a process that serves a store as a member, and return its exit code.

    Settings come from STELE_* variables.
    """

    async def main(stop: Stop) -> None:
        settings = started(name, AgentSettings)
        own_id = settings.own_id()
        # Lock before boot: a second process must not count a start of this directory.
        with locked(settings.data_dir):
            directory = boot(settings.data_dir, own_id, settings.cluster, STORE_FILE)
            store = open_bound(directory, open_store)
            ranges = None if on_ranges is None else on_ranges(store)
            columns = None if on_columns is None else on_columns(store)
            async with (
                http.listening(settings, name, CATCHING_UP) as listener,
                embedded(
                    settings, directory, store, settings.address or listener.url, ranges, columns
                ) as member,
            ):
                own = [*member.routes(), *routes(member, store)]
                app = http.build_app(name, own, member.health)
                async with member.membership.admitting(stop):
                    await listener.serve(app, stop)

    return run_service(main)
