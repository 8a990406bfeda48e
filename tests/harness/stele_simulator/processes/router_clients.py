"""Clients of stores that embed the agent: they find replicas by the router, and use quorums of them.

The store merges, so its clients build a register: a write uses a count above that of a quorum, and a read
writes its result back (Attiya, Bar-Noy, Dolev: "Sharing Memory Robustly in Message-Passing Systems", J. ACM
42(1), 1995). Their observations of a key form a register as long as all quorums intersect.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.agent.embedded import Member
from stele.agent.probing import request_of
from stele.agent.stores import Row
from stele.domain.image import Image
from stele.router.over_http import http_router
from stele.router.over_kafka import log_router
from stele.router.router import (
    Place,
    Replicas,
    Router,
    RoutingError,
    StaleRoute,
    read_quorum,
    write_quorum,
)
from stele.runtime.http import HttpError, answer_http_error
from stele.runtime.transport import Transport
from stele_simulator.messages import KvOp, begun
from stele_simulator.processes.data import AGAIN_S, KEYSPACE, some_key
from stele_simulator.processes.embedded_store import COUNT_BYTES, Shelf
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.releases import NEWER
from stele_simulator.processes.web import WebTransport

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

TASKS: Final = 2
"""Concurrent requests of one router."""
THINK_S: Final = 0.8
CALL_S: Final = 1.0
REQUEST_S: Final = 5.0
PATH: Final = "/rows"
ROUTE_ANEW: Final = 409
NO_ROOM: Final = 507
OK: Final = 200


class Refusal(msgspec.Struct):
    """The parts of a node's answer that a client uses."""

    details: dict[str, object] = {}


def rows_of(member: Member, shelf: Shelf) -> list[Route]:
    """Return the client requests of a store: put a row, and get one."""

    async def put(request: Request) -> Response:
        routed, key = request_of(request), request.path_params["key"].encode()
        value = await request.body()
        async with member.request(routed):
            await _turn_of_the_disk()
            member.check(routed)
            shelf.merge(routed.data_id, [Row(routed.token, key, value)])
            await _turn_of_the_disk()
        return Response()

    async def get(request: Request) -> Response:
        routed, key = request_of(request), request.path_params["key"].encode()
        async with member.request(routed):
            found = shelf.rows.get(routed.data_id, {}).get((routed.token, key), b"")
            await _turn_of_the_disk()
        return Response(found)

    path = PATH + "/{key:path}"
    return [
        Route(path, _answered(put), methods=["PUT"]),
        Route(path, _answered(get), methods=["GET"]),
    ]


async def _turn_of_the_disk() -> None:
    """Epochs come meanwhile, many of them where the disk is slow."""
    await asyncio.to_thread(int)


def _answered(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """With errors as a server answers them."""

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except HttpError as error:
            return await answer_http_error(request, error)
        except OSError as error:
            return Response(str(error), NO_ROOM)

    return answered


class RouterMachine(Machine):
    """A program with a router, over HTTP or by the log itself, and what it asks of the stores."""

    router: Router | None = None
    transport: Transport

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.installed = NEWER  # clients are upgraded before a feature is enabled
        self.unread = set[str]()
        """Keys that it is to read once more, when all else is over."""
        self._asked = 0

    @property
    def image(self) -> Image | None:
        return None if self.router is None else self.router.image

    def forget(self) -> None:
        super().forget()
        self.router = None

    async def main(self) -> None:
        self.transport = WebTransport(self)
        async with self._routing() as router:
            self.router = router
            await asyncio.gather(*(self._work(router) for _ in range(TASKS)))

    def _routing(self) -> AbstractAsyncContextManager[Router]:
        from stele_simulator.processes.members import CLUSTER, open_log

        world = self.world
        if int(self.name[1:]) % 2:
            return http_router([each.url for each in world.logs], transport=WebTransport(self))
        return log_router(
            open_log, lambda: world.catch_up(self), CLUSTER, supported=self.build.features
        )

    async def _work(self, router: Router) -> None:
        while True:
            await asyncio.sleep(2 * THINK_S * self.chance.random())
            if self.world.callers_work:
                key = some_key(self.world.scenario, self.chance)
                await (self._write if self.chance.random() < 0.5 else self._read)(router, key)
            elif self.unread:
                key = self.chance.choice(sorted(self.unread))
                if await self._read(router, key):
                    self.unread.discard(key)
                else:
                    await asyncio.sleep(AGAIN_S)

    async def _write(self, router: Router, key: str) -> None:
        self._asked += 1
        value = f"{self.name}:{self._asked}"
        pending = self._begun(key, value)
        number, known = self.world.rows.begins(pending), True
        try:
            newest = await self._newest(router, key)
            count = int.from_bytes(newest[:COUNT_BYTES]) + 1
            known = False
            await self._put(router, key, count.to_bytes(COUNT_BYTES) + value.encode())
        except RoutingError:
            ended = msgspec.structs.replace(pending, ended=self.world.kernel.now_s, known=known)
            if known:
                self.world.rows.ends(number, ended)
            return
        now_s = self.world.kernel.now_s
        self.world.rows.ends(
            number, msgspec.structs.replace(pending, ended=now_s, done=True, known=True)
        )

    async def _read(self, router: Router, key: str) -> bool:
        pending = self._begun(key, None)
        number = self.world.rows.begins(pending)
        try:
            newest = await self._newest(router, key)
            if newest:
                await self._put(router, key, newest)
        except RoutingError:
            return False
        value = newest[COUNT_BYTES:].decode() or None
        ended = self.world.kernel.now_s
        done = msgspec.structs.replace(pending, ended=ended, value=value, done=True, known=True)
        self.world.rows.ends(number, done)
        return True

    async def _newest(self, router: Router, key: str) -> bytes:
        found = dict[str, bytes]()
        async for attempt in router.attempts(*_named(key), REQUEST_S):
            with attempt as replicas:
                found = await read_quorum(
                    replicas, lambda at: self._call("GET", at, replicas), CALL_S
                )
        return max(found.values())

    async def _put(self, router: Router, key: str, stamped: bytes) -> None:
        async for attempt in router.attempts(*_named(key), REQUEST_S):
            with attempt as replicas:
                await write_quorum(
                    replicas, lambda at: self._call("PUT", at, replicas, stamped), CALL_S
                )

    async def _call(
        self, method: str, at: Place, replicas: Replicas, body: bytes | None = None
    ) -> bytes:
        said = bytearray()
        status = await self.transport.ask(
            f"{at.address}{PATH}/{replicas.key.decode()}",
            lambda _, piece: said.extend(piece),
            CALL_S,
            headers=replicas.headers(at),
            method=method,
            body=body,
        )
        if status == ROUTE_ANEW:
            epoch = msgspec.json.decode(bytes(said), type=Refusal).details.get("epoch", 0)
            raise StaleRoute(int(str(epoch)), f"{at.node_id}: {said.decode()[:200]}")
        if status != OK:
            raise ConnectionError(f"{at.node_id} answers {status}: {said.decode()[:200]}")
        return bytes(said)

    def _begun(self, key: str, value: str | None) -> KvOp:
        return begun(self.world.kernel.now_s, self.name, key, value)


def _named(key: str) -> tuple[str, bytes]:
    """The name that serves it, and the key itself."""
    table, _, own = key.rpartition("/")
    return table or KEYSPACE, own.encode()
