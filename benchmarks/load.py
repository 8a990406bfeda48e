"""A light load generator in a process of its own: `python -m benchmarks.load <what> <target> ...`.

Closed loops over raw keep-alive connections, without an HTTP library, so that it does not dominate what
it measures. Prints one Measured as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import uvloop

from benchmarks import payload
from benchmarks.numbers import Measured, measured
from stele.log.brokers import Brokers
from stele.log.flows import FlowReader, FlowWriter, flow_topic

WARM_UP_S = 1.0


class Clock:
    """Latencies within the measured time only; the warm-up before it does not count."""

    def __init__(self, seconds: float) -> None:
        self.begin_s = time.perf_counter() + WARM_UP_S
        self.end_s = self.begin_s + seconds
        self.latencies_s: list[float] = []

    def note(self, sent_s: float) -> bool:
        """False when the time is over."""
        now_s = time.perf_counter()
        if now_s >= self.end_s:
            return False
        if sent_s >= self.begin_s:
            self.latencies_s.append(now_s - sent_s)
        return True


class Connection(asyncio.Protocol):
    """One client: sends a request, waits for the whole answer, sends the next."""

    def __init__(
        self, host: str, clock: Clock, make: Callable[[bytes], tuple[str, bytes]], ok: bytes
    ) -> None:
        self._host, self._clock, self._make, self._ok = host, clock, make, ok
        self._buffer = b""
        self._sent_s = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's
        self._send(b"")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
        if len(body) < int(size):
            return
        self._buffer = b""
        if not head.startswith(self._ok):
            self.done.set_exception(RuntimeError(f"{head[:60]!r}: {body[:300]!r}"))
            self._transport.close()
        elif self._clock.note(self._sent_s):
            self._send(body)
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send(self, answer: bytes) -> None:
        path, body = self._make(answer)
        self._sent_s = time.perf_counter()
        self._transport.write(payload.http_request(self._host, path, body))


async def http(
    what: str, target: str, clients: int, seconds: float, make: Callable[[bytes], tuple[str, bytes]]
) -> Measured:
    host, _, port = target.removeprefix("http://").partition(":")
    clock, loop = Clock(seconds), asyncio.get_running_loop()
    connections = list[Connection]()
    for _ in range(clients):
        _, connection = await loop.create_connection(
            lambda: Connection(f"{host}:{port}", clock, make, b"HTTP/1.1 200"), host, int(port)
        )
        connections.append(connection)
    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(connection.done for connection in connections))
    return measured(what, clients, clock.latencies_s, seconds)


async def commits_by_http(target: str, clients: int, seconds: float) -> Measured:
    def make(_: bytes) -> tuple[str, bytes]:
        return "/v1/commands", payload.commit_body()

    return await http("commit by HTTP", target, clients, seconds, make)


async def etcd_puts(target: str, clients: int, seconds: float) -> Measured:
    def make(_: bytes) -> tuple[str, bytes]:
        return "/v3/kv/put", payload.etcd_put_body(int(time.perf_counter_ns()))

    return await http("etcd blind put by HTTP", target, clients, seconds, make)


async def etcd_chain(target: str, clients: int, seconds: float) -> Measured:
    """Every client chains on one key, as epochs do: it learns the newest revision and tries again.

    Only successful swaps count as commits; a commit's latency includes the swaps that lost before it.
    """
    host, _, port = target.removeprefix("http://").partition(":")
    clock, loop = Clock(seconds), asyncio.get_running_loop()
    clients_s = [ChainClient(f"{host}:{port}", clock) for _ in range(clients)]
    for client in clients_s:
        await loop.create_connection(lambda client=client: client, host, int(port))  # type: ignore[misc]
    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(client.done for client in clients_s))
    return measured("etcd swap chain by HTTP", clients, clock.latencies_s, seconds)


class ChainClient(Connection):
    def __init__(self, host: str, clock: Clock) -> None:
        super().__init__(host, clock, self._swap, b"HTTP/1.1 200")
        self._began_s = 0.0
        self._chain_clock = clock
        self._clock = _Always(clock)  # type: ignore[assignment]

    def _swap(self, answer: bytes) -> tuple[str, bytes]:
        revision = 0
        if answer:
            found: dict[str, Any] = json.loads(answer)
            if found.get("succeeded"):
                self._chain_clock.note(self._began_s)
                self._began_s = time.perf_counter()
                revision = int(found["header"]["revision"])
            else:
                kvs = found["responses"][0]["response_range"].get("kvs")
                revision = int(kvs[0]["mod_revision"]) if kvs else 0
        else:
            self._began_s = time.perf_counter()
        return "/v3/kv/txn", payload.etcd_chain_body(revision)


class _Always:
    """Ends a connection with the clock, and leaves the noting to the chain."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def note(self, _: float) -> bool:
        return time.perf_counter() < self._clock.end_s


async def commits_by_topic(target: str, clients: int, seconds: float) -> Measured:
    """``target`` is bootstrap/cluster."""
    bootstrap, _, cluster = target.partition("/")
    clock, template = Clock(seconds), payload.EnvelopeBytes()
    commands = FlowWriter(Brokers(bootstrap), flow_topic(cluster, "commands"))
    sent_s = dict[bytes, float]()
    over = asyncio.Event()

    def send() -> None:
        request = payload.request_id()
        sent_s[request.encode()] = time.perf_counter()
        commands.send(request, template.make(request.encode()))

    def on_outcome(value: bytes) -> None:
        began_s = sent_s.pop(value[payload.ID_AT : payload.ID_AT + payload.ID_CHARS], None)
        if began_s is None:
            return
        assert value[payload.ID_AT + payload.ID_CHARS] == 1, "a command was refused"
        if clock.note(began_s):
            send()
        elif not sent_s:
            over.set()

    def unreadable(error: Exception) -> None:
        raise error

    reader = FlowReader(Brokers(bootstrap), flow_topic(cluster, "outcomes"), on_outcome, unreadable)
    await reader.start()
    clock = Clock(seconds)
    for _ in range(clients):
        send()
    await asyncio.wait_for(over.wait(), seconds + 60)
    await reader.close()
    await commands.close()
    return measured("commit by commands topic", clients, clock.latencies_s, seconds)


LOADS = {
    "http": commits_by_http,
    "topic": commits_by_topic,
    "etcd-put": etcd_puts,
    "etcd-chain": etcd_chain,
}

if __name__ == "__main__":
    which, where, how_many, how_long = sys.argv[1:]
    result = uvloop.run(LOADS[which](where, int(how_many), float(how_long)))
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
