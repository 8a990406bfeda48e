"""An agent beside an unchanged Valkey: together they are a node, and several of them a replicated store.

It starts the Valkey of its data directory, on loopback and for itself alone: clients come to the agent, which
judges their requests. Run it as ``python agent.py``, by STELE_* variables; clients are those of sixty_lines.

In Valkey the rows of some data are a sorted set of members, the token in 8 bytes that sort as it does and then
the key, and a hash of their values. A value begins with its client's timestamp, 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stele.agent import Member, Row, Span, request_of, run_store
from stele.domain.ring.ranges import MIN_TOKEN
from stele_harness.stack.ports import LOOPBACK, free_port
from stele_harness.stack.process import Program, spawn
from stele_harness.stack.redis import find_redis_server

TOKEN_BYTES = 8
START_TRIES, START_PAUSE_S = 100, 0.1
MEASURED = 1000
"""Number of rows that are read at once to measure their sizes."""


def member_of(token: int, key: bytes) -> bytes:
    return (token - MIN_TOKEN).to_bytes(TOKEN_BYTES, "big") + key


def row_of(member: bytes, value: bytes) -> Row:
    token = int.from_bytes(member[:TOKEN_BYTES], "big") + MIN_TOKEN
    return Row(token, member[TOKEN_BYTES:], value)


def limits_of(span: Span) -> tuple[bytes, bytes]:
    """Return the limits of the span's members. The start is excluded; all keys of the end are included."""
    _, start, end = span.bounds()
    behind = end - MIN_TOKEN + 1
    last = b"+" if behind >> 64 else b"(" + behind.to_bytes(TOKEN_BYTES, "big")
    return b"[" + member_of(start + 1, b""), last


class Valkey:
    """A ``stele.agent.Store``. Every change is synced before Valkey answers: ``appendfsync always``."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        port = free_port()
        options = {
            "--bind": LOOPBACK,
            "--port": str(port),
            "--dir": str(path),
            "--appendonly": "yes",
            "--appendfsync": "always",
            "--save": "",
        }
        argv = [find_redis_server(), *(word for option in options.items() for word in option)]
        log = path / "valkey.log"
        self.process = spawn(Program("valkey", argv, stdout=log, stderr=log))
        retry = Retry(ConstantBackoff(START_PAUSE_S), START_TRIES)
        errors: list[type[Exception]] = [redis.ConnectionError, redis.BusyLoadingError]
        with redis.Redis(LOOPBACK, port, retry=retry, retry_on_error=errors) as starting:
            starting.ping()
        self.valkey: Any = redis.Redis(LOOPBACK, port, socket_timeout=5)

    def host_id(self) -> str:
        found = self.valkey.get("host_id")
        return found.decode() if isinstance(found, bytes) else ""

    def claim(self, host_id: str) -> None:
        self.valkey.set("host_id", host_id)

    def data_ids(self) -> Iterable[str]:
        names: list[bytes] = self.valkey.keys("rows:*")
        return [name.decode().removeprefix("rows:") for name in names]

    def members(self, span: Span, after: tuple[int, bytes] | None, limit: int) -> list[bytes]:
        first, last = limits_of(span)
        first = b"(" + member_of(*after) if after else first
        found: list[bytes] = self.valkey.zrangebylex(f"rows:{span.keyspace}", first, last, 0, limit)
        return found

    def values(self, data_id: str, members: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self.valkey.hmget(f"values:{data_id}", members)
        return found

    def scan(self, span: Span, after: tuple[int, bytes] | None, limit: int) -> Sequence[Row]:
        members = self.members(span, after, limit)
        values = self.values(span.keyspace, members) if members else []
        return [row_of(m, value or b"") for m, value in zip(members, values, strict=True)]

    def merge(self, data_id: str, rows: Sequence[Row]) -> None:
        members = [member_of(row.token, row.key) for row in rows]
        known = self.values(data_id, members)
        newer: dict[bytes, bytes] = {}
        for member, row, value in zip(members, rows, known, strict=True):
            if row.value > max(value or b"", newer.get(member, b"")):
                newer[member] = row.value
        if newer:
            with self.valkey.pipeline(transaction=True) as both:
                both.hset(f"values:{data_id}", mapping=newer)
                both.zadd(f"rows:{data_id}", dict.fromkeys(newer, 0))
                both.execute()

    def delete(self, span: Span, limit: int) -> int:
        members = self.members(span, None, limit)
        if members:
            with self.valkey.pipeline(transaction=True) as both:
                both.zrem(f"rows:{span.keyspace}", *members)
                both.hdel(f"values:{span.keyspace}", *members)
                both.execute()
        return len(members)

    def size_bytes(self, span: Span) -> int:
        """The number of rows, times the size of some of them."""
        some = self.scan(span, None, MEASURED)
        count: int = self.valkey.zlexcount(f"rows:{span.keyspace}", *limits_of(span))
        return sum(len(r.key) + len(r.value) for r in some) * count // max(1, len(some))


def routes(member: Member, store: Valkey) -> list[BaseRoute]:
    async def put(request: Request) -> Response:
        routed, value = request_of(request), await request.body()
        async with member.request(routed):
            row = Row(routed.token, request.path_params["key"].encode(), value)
            store.merge(routed.data_id, [row])
        return Response()

    async def get(request: Request) -> Response:
        routed, key = request_of(request), request.path_params["key"].encode()
        async with member.request(routed):
            (found,) = store.values(routed.data_id, [member_of(routed.token, key)])
        return Response(found or b"")

    path = "/v1/values/{key:path}"
    return [Route(path, put, methods=["PUT"]), Route(path, get, methods=["GET"])]


if __name__ == "__main__":
    raise SystemExit(run_store("valkey", Valkey, routes))
