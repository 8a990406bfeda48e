"""Orders of an embedded store: rows are streamed in and out over HTTP, and deleted.

Pages are msgpack arrays. The sender checks the session before and after a page. The receiver checks
it before the effect of each row. Rows are not compared: all rows are pulled and merged.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from stele.agent.agent import Agent
from stele.agent.cleanup import Cleaner, Truncator
from stele.agent.judging import Code, Judge, NotGiven
from stele.agent.orders import OrderHandler, OrderProgress
from stele.agent.pulling import Pace, Puller, Reading, nothing_at
from stele.agent.stores import Cursor, Row, Span, Store, page_bytes, page_of
from stele.domain.messages import Order
from stele.domain.model.settings import stream_bytes_per_s
from stele.domain.names import OrderKind
from stele.domain.routed import headers_for
from stele.log.follower import LogFollower
from stele.runtime.http_tls import certificate_refused
from stele.runtime.transport import FAILURES, HttpTransport, Transport, answer_of

PAGES_PATH: Final = "/v1/agent/pages"
ANSWER_S: Final = 15.0
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404

_FAILURES: Final = (*FAILURES, msgspec.DecodeError)


class Ask(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A request for rows of spans after the cursor.

    With ``size_only`` it asks for the bytes of all spans instead.
    """

    epoch: int
    session: str
    spans: list[Span]
    cursor: Cursor | None = None
    size_only: bool = False


class Given(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Rows with the index of their span, or a ``code`` and ``text`` why there are none.

    If ``cursor`` is set, there may be more rows.
    """

    code: Code
    text: str = ""
    rows: list[tuple[int, Row]] = []
    size_bytes: int = 0
    cursor: Cursor | None = None


encode: Final = msgspec.msgpack.Encoder().encode
decode_ask: Final = msgspec.msgpack.Decoder(Ask).decode
decode_given: Final = msgspec.msgpack.Decoder(Given).decode


class NotSupported(Exception):
    """The store does not support the order. The request behind it fails with this text."""


class Transfers:
    """The transfers of one node. Create it in the event loop, and close it."""

    can_compare = False

    def __init__(
        self, agent: Agent, judge: Judge, store: Store, transport: Transport | None = None
    ) -> None:
        self._agent = agent
        self._judge = judge
        self._store = store
        self._transport = transport or HttpTransport(ANSWER_S)
        self._pace = Pace(self._limit_bytes_per_s)

    async def close(self) -> None:
        await self._transport.close()

    async def give(self, ask: Ask) -> Given:
        """Return the rows or sizes that another node requests under an operation's session."""
        try:
            async with self._judge.giving(ask.epoch, ask.session):
                if ask.size_only:
                    sizes = map(self._store.size_bytes, ask.spans)
                    return Given(code=Code.OK, size_bytes=sum(sizes))
                return self._page(ask)
        except NotGiven as error:
            return Given(code=error.code, text=str(error))

    def has_rows(self, span: Span) -> bool:
        return bool(self._store.scan(span, None, 1))

    def _page(self, ask: Ask) -> Given:
        """Return a page.

        Its size follows the limit in this node's image, since the request contains no limit.
        """
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
        self,
        reading: Reading,
        source: str,
        spans: Sequence[Span],
        progress: OrderProgress,
        *,
        differing: bool,
    ) -> bool:
        del differing  # a store has no digests, so all rows are pulled
        cursor: Cursor | None = None
        while True:
            ask = self._ask(reading, spans, cursor)
            page = await self._answer(reading, source, ask)
            if page is None:
                return False
            # No ``await`` follows before the merge, so no row takes effect under a closed session.
            reading.guard.check()
            for at, rows in groupby(page.rows, key=lambda pair: pair[0]):
                data_id = spans[at].keyspace
                # not truncated in the meantime
                if self._agent.image.schema.of_data(data_id) is not None:
                    self._store.merge(data_id, [row for _, row in rows])
            # Count after the merge: data that is reported as done must be on the disk.
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
        """Request a page over HTTP. A failed call is an answer with UNREACHABLE."""
        headers = headers_for(self._agent.image, source)
        try:
            status, body = await answer_of(
                self._transport,
                address + PAGES_PATH,
                ANSWER_S,
                headers=headers,
                method="POST",
                body=encode(ask),
            )
            if status == HTTP_NOT_FOUND:
                return Given(code=Code.UNREACHABLE, text=nothing_at(PAGES_PATH, address))
            if status != HTTP_OK:
                text = f"{address} answers {status}: {body[:200]!r}"
                return Given(code=Code.UNREACHABLE, text=text)
            return decode_given(body)
        except _FAILURES as error:
            why = certificate_refused(error) or repr(error)
            return Given(code=Code.UNREACHABLE, text=f"{address}: {why}")


class _Size(NamedTuple):
    """Number of rows, and their size in bytes."""

    keys: int
    size_bytes: int


class Deletes:
    """The store's data, as cleanup and truncation delete it."""

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
    """Return the store's handlers by kind of order."""

    async def refuse(order: Order, _: OrderProgress) -> None:
        raise NotSupported(f"this store does not {order.kind}: it keeps no files")

    deletes = Deletes(store)
    return {
        OrderKind.STREAM: Puller(node_id, follower, agent, transfers).run,
        OrderKind.CLEANUP: Cleaner(node_id, follower, deletes, agent.unknown_data).run,
        OrderKind.TRUNCATE: Truncator(follower, deletes).run,
        OrderKind.SNAPSHOT: refuse,
        OrderKind.RESTORE: refuse,
    }
