"""Orders of an embedded store: its rows stream in from other nodes and out to them, and are deleted.

Pages go over HTTP as msgpack arrays. Whoever gives one checks the session before and after; whoever takes one
checks it before each row's effect. What differs is not told apart: all rows are pulled, and merged.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from stele.agent.agent import Agent
from stele.agent.cleanup import Cleaner
from stele.agent.codes import Code
from stele.agent.orders import OrderHandler, OrderProgress
from stele.agent.pace import Pace
from stele.agent.pages import Cursor, page_bytes, page_of
from stele.agent.pulling import Puller, Reading, nothing_at
from stele.agent.sourcing import NotGiven, Sourcing
from stele.agent.spans import Span
from stele.agent.stores import Row, Store
from stele.agent.truncation import Truncator
from stele.domain.messages import Order
from stele.domain.names import OrderKind
from stele.domain.routed import LOG, REPLICA
from stele.domain.topology.limits import stream_bytes_per_s
from stele.log.follower import LogFollower
from stele.runtime.http_tls import certificate_refused
from stele.runtime.transport import FAILURES, HttpTransport, Transport

PAGES_PATH: Final = "/v1/agent/pages"
ANSWER_S: Final = 15.0
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404

_FAILURES: Final = (*FAILURES, msgspec.DecodeError)


class Ask(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Rows of spans behind the cursor; with ``size_only`` how many bytes all of them have."""

    epoch: int
    session: str
    spans: list[Span]
    cursor: Cursor | None = None
    size_only: bool = False


class Given(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Rows with the place of their span; with a ``cursor`` there may be more. Or why there are none."""

    code: Code
    text: str = ""
    rows: list[tuple[int, Row]] = []
    size_bytes: int = 0
    cursor: Cursor | None = None


encode: Final = msgspec.msgpack.Encoder().encode
decode_ask: Final = msgspec.msgpack.Decoder(Ask).decode
decode_given: Final = msgspec.msgpack.Decoder(Given).decode


class NotSupported(Exception):
    """The store does not do what is ordered; the request that asked for it fails with this sentence."""


class Transfers:
    """One node's. Make it inside the event loop, and close it."""

    def __init__(
        self, agent: Agent, sourcing: Sourcing, store: Store, transport: Transport | None = None
    ) -> None:
        self._agent = agent
        self._sourcing = sourcing
        self._store = store
        self._transport = transport or HttpTransport(ANSWER_S)
        self._pace = Pace(self._limit_bytes_per_s)

    async def close(self) -> None:
        await self._transport.close()

    async def give(self, ask: Ask) -> Given:
        """What another node asks for, under the session of a topology operation."""
        try:
            async with self._sourcing.giving(ask.epoch, ask.session):
                if ask.size_only:
                    sizes = map(self._store.size_bytes, ask.spans)
                    return Given(code=Code.OK, size_bytes=sum(sizes))
                return self._page(ask)
        except NotGiven as error:
            return Given(code=error.code, text=str(error))

    def has_rows(self, span: Span) -> bool:
        return bool(self._store.scan(span, None, 1))

    def _page(self, ask: Ask) -> Given:
        """Bounded here, by what this node reads of the limit: the receiver's question says nothing of sizes."""
        limit_bytes = page_bytes(self._limit_bytes_per_s())
        page = page_of(self._store, ask.spans, ask.cursor, limit_bytes)
        return Given(code=Code.OK, rows=page.rows, size_bytes=page.size_bytes, cursor=page.cursor)

    def _limit_bytes_per_s(self) -> int:
        return stream_bytes_per_s(self._agent.image.features.settings)

    async def measure(self, reading: Reading, source: str, spans: Sequence[Span]) -> int | None:
        ask = self._ask(reading, spans, size_only=True)
        found = await reading.answer(source, lambda address: self._call(source, address, ask))
        return None if found is None else found.size_bytes

    async def pull(
        self, reading: Reading, source: str, spans: Sequence[Span], progress: OrderProgress
    ) -> bool:
        cursor: Cursor | None = None
        while True:
            ask = self._ask(reading, spans, cursor)
            page = await self._answer(reading, source, ask)
            if page is None:
                return False
            reading.guard.check()
            for at, rows in groupby(page.rows, key=lambda pair: pair[0]):
                data_id = spans[at].keyspace
                if self._agent.image.schema.of_data(data_id) is not None:  # not truncated meanwhile
                    self._store.merge(data_id, [row for _, row in rows])
            await self._pace.took(page.size_bytes)
            progress.add(page.size_bytes, len(page.rows), source)
            cursor = page.cursor
            if cursor is None:
                return True

    async def _answer(self, reading: Reading, source: str, ask: Ask) -> Given | None:
        return await reading.answer(source, lambda address: self._call(source, address, ask))

    def _ask(
        self,
        reading: Reading,
        spans: Sequence[Span],
        cursor: Cursor | None = None,
        *,
        size_only: bool = False,
    ) -> Ask:
        order = reading.order
        return Ask(
            epoch=order.epoch,
            session=order.session,
            spans=[*spans],
            cursor=cursor,
            size_only=size_only,
        )

    async def _call(self, source: str, address: str, ask: Ask) -> Given:
        headers = {REPLICA: source, LOG: self._agent.image.log_id.hex()}
        body = bytearray()

        def took(_: int, piece: bytes) -> None:
            body.extend(piece)

        try:
            status = await self._transport.ask(
                address + PAGES_PATH,
                took,
                ANSWER_S,
                headers=headers,
                method="POST",
                body=encode(ask),
            )
            if status == HTTP_NOT_FOUND:
                return Given(code=Code.UNREACHABLE, text=nothing_at(PAGES_PATH, address))
            if status != HTTP_OK:
                text = f"{address} answers {status}: {bytes(body[:200])!r}"
                return Given(code=Code.UNREACHABLE, text=text)
            return decode_given(body)
        except _FAILURES as error:
            why = certificate_refused(error) or repr(error)
            return Given(code=Code.UNREACHABLE, text=f"{address}: {why}")


class _Size(NamedTuple):
    keys: int
    size_bytes: int


class Deletes:
    """A store's data as cleanup and truncation delete it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def partitions(self) -> Sequence[str]:
        return [*self._store.data_ids()]

    async def measure(self, spans: Sequence[Span]) -> _Size:
        return _Size(0, sum(map(self._store.size_bytes, spans)))

    async def delete(self, span: Span, limit: int, may_delete: Callable[[], bool]) -> _Size:
        return _Size(self._store.delete(span, limit) if may_delete() else 0, 0)


def handlers_of(
    node_id: str, follower: LogFollower, agent: Agent, store: Store, transfers: Transfers
) -> Mapping[OrderKind, OrderHandler]:
    """The store's functions for orders, by kind."""

    async def refuse(order: Order, _: OrderProgress) -> None:
        raise NotSupported(f"this store does not {order.kind}: it keeps no files of its own")

    deletes = Deletes(store)
    return {
        OrderKind.STREAM: Puller(node_id, follower, agent, transfers).run,
        OrderKind.CLEANUP: Cleaner(node_id, follower, deletes).run,
        OrderKind.TRUNCATE: Truncator(follower, deletes).run,
        OrderKind.SNAPSHOT: refuse,
        OrderKind.RESTORE: refuse,
    }
