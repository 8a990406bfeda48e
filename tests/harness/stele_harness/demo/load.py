"""A client that writes and reads at QUORUM all the time and keeps account of every answer.

Each key has one writer, which writes growing numbers. What was acknowledged must be read back, or
something newer that was at least attempted. A write without an answer is unknown: it may show up later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import aiohttp

from stele.cli.commands.data import data_path

KEYSPACE = "library"
WORKERS = 4
KEYS_PER_WORKER = 8
PAUSE_S = 0.03
"""Between two operations of a worker: a moderate load, so that two cores can also move data."""
TIMEOUT_S = 8.0
"""Nodes time out after 5 s. The outcome of a request without an answer until then is unknown."""
REPEAT_S = 240.0
"""How long a request is repeated while too few replicas answer in time, as on a busy machine."""
LONG_TIMEOUT_S = 60.0
"""Limit of one attempt of a request that is repeated until it succeeds."""
PADDING = b"." * 200


@dataclass(slots=True)
class Key:
    """The writer's knowledge of a key."""

    name: str
    acknowledged: int = 0
    attempted: int = 0


@dataclass(slots=True)
class Account:
    """Everything that happened."""

    writes_acknowledged: int = 0
    writes_refused: int = 0
    writes_unknown: int = 0
    tried_again: int = 0
    reads_answered: int = 0
    reads_failed: int = 0
    stale_reads: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0
    last_acknowledged_at: float = 0.0

    def acknowledge(self, now: float) -> None:
        self.writes_acknowledged += 1
        if self.last_acknowledged_at:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_acknowledged_at)
        self.last_acknowledged_at = now


class Load:
    """Several workers over their own keys; they read everybody's."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        seed: int = 1,
        *,
        table: str = KEYSPACE,
        prefix: str = "load",
        keys_per_worker: int = KEYS_PER_WORKER,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._http = http
        self._table = table
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._stop = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self.account = Account()
        self.nodes: tuple[str, ...] = ()
        self.keys = [
            [Key(f"{prefix}/worker-{w}/key-{k}") for k in range(keys_per_worker)]
            for w in range(WORKERS)
        ]
        self._all = [key for keys in self.keys for key in keys]
        self.began = 0.0
        self.ended = 0.0

    def start(self, nodes: tuple[str, ...]) -> None:
        """Begin through these nodes' addresses."""
        self.nodes = nodes
        self.began = time.monotonic()
        self._workers = [asyncio.create_task(self._work(keys)) for keys in self.keys]

    async def stop(self) -> None:
        """End once every worker has its answer."""
        self._stop.set()
        await asyncio.gather(*self._workers)
        self.ended = time.monotonic()

    @property
    def running(self) -> bool:
        return bool(self._workers) and not self._stop.is_set()

    async def lost_writes(self) -> list[str]:
        """Return the keys whose last acknowledged write is gone, read through every node.

        A key that a node cannot read for ``REPEAT_S`` counts as gone too, with the reason.
        """
        found = await asyncio.gather(*(self._lost_through(node) for node in self.nodes))
        return [key for lost in found for key in lost]

    async def _lost_through(self, node: str) -> list[str]:
        until = time.monotonic() + REPEAT_S
        lost: list[str] = []
        for key in self._all:
            answer = await until_answered(partial(self._call, "GET", node, key.name, None), until)
            number = self._number(answer, key.name) if answer.is_answered() else answer.why()
            if number not in range(key.acknowledged, key.attempted + 1):
                lost.append(f"{key.name} through {node}: {number}, acknowledged {key.acknowledged}")
        return lost

    async def _work(self, own: list[Key]) -> None:
        while not self._stop.is_set():
            await self._write(self._random.choice(own))
            await self._read(self._random.choice(self._all))
            await asyncio.sleep(self._pause_s)

    async def _write(self, key: Key) -> None:
        key.attempted += 1
        number = key.attempted
        began = time.monotonic()
        for node in self._some_nodes():
            answer = await self._call("PUT", node, key.name, self._content(key.name, number))
            if answer.status == 200:
                key.acknowledged = max(key.acknowledged, number)
                now = time.monotonic()
                self.account.acknowledge(now)
                self.account.latencies_s.append(now - began)
                return
            self.account.failures[f"write: {answer.why()}"] += 1
            if not answer.is_surely_undone():
                self.account.writes_unknown += 1
                return
            self.account.tried_again += 1
        self.account.writes_refused += 1

    async def _read(self, key: Key) -> None:
        least = key.acknowledged
        for node in self._some_nodes():
            answer = await self._call("GET", node, key.name, None)
            if answer.is_answered():
                self.account.reads_answered += 1
                number = self._number(answer, key.name)
                if not least <= number <= key.attempted:
                    self.account.stale_reads.append(
                        f"{key.name} through {node}: {number} after {least} was acknowledged"
                    )
                return
            self.account.failures[f"read: {answer.why()}"] += 1
            self.account.tried_again += 1
        self.account.reads_failed += 1

    def _some_nodes(self) -> list[str]:
        """Two different nodes, as any driver would try: the second one when the first cannot."""
        return self._random.sample(self.nodes, min(2, len(self.nodes)))

    def _content(self, key: str, number: int) -> bytes:
        """Return the value to write for a number."""
        return value_of(key, number)

    def _number(self, answer: Answer, key: str) -> int:
        """Return the number that was read: 0 for none, -1 for a value of another key."""
        return 0 if answer.status == 404 else number_in(answer.body, key)

    def _headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        return {}

    async def _call(self, method: str, node: str, key: str, value: bytes | None) -> Answer:
        url, headers = node + data_path(self._table, key), self._headers()
        return await ask_quorum(self._http, method, url, TIMEOUT_S, value, headers)


NEVER_SENT = 0
NO_ANSWER = -1
UNDONE_CODES = (b'"node_left"', b'"not_admitted"', b'"catching_up"', b'"disk_full"')
"""Errors that a node gives only for a write that is nowhere, nor will be."""


class Answer(NamedTuple):
    """HTTP status, or one of the two above, and the body."""

    status: int
    body: bytes

    def is_answered(self) -> bool:
        """True when a read found a value or that there is none, or a write succeeded."""
        return self.status in (200, 404)

    def is_surely_undone(self) -> bool:
        """True when a write cannot have had any effect."""
        if self.status == NEVER_SENT or 400 <= self.status < 500:
            return True
        return any(code in self.body for code in UNDONE_CODES)

    def why(self) -> str:
        return f"{self.status} {self.body[:160].decode(errors='replace')}"


async def until_answered(ask: Callable[[], Awaitable[Answer]], until: float) -> Answer:
    """Repeat a read, or a write of the same value, until it succeeds.

    Returns the last answer when the monotonic clock reaches ``until``.
    """
    while True:
        answer = await ask()
        if answer.is_answered() or time.monotonic() > until:
            return answer
        await asyncio.sleep(PAUSE_S)


async def ask_until_answered(
    http: aiohttp.ClientSession, method: str, url: str, value: bytes | None = None
) -> Answer:
    """Read or write a row at consistency QUORUM, repeatedly for up to ``REPEAT_S``."""
    ask = partial(ask_quorum, http, method, url, LONG_TIMEOUT_S, value)
    return await until_answered(ask, time.monotonic() + REPEAT_S)


async def ask_quorum(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    timeout_s: float,
    value: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Read or write a row at consistency QUORUM through one node."""
    try:
        async with http.request(
            method,
            url,
            params={"consistency": "quorum"},
            headers=headers,
            data=value,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            return Answer(answer.status, await answer.read())
    except aiohttp.ClientConnectorError:
        return Answer(NEVER_SENT, b"no connection")
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(NO_ANSWER, repr(error).encode())


def value_of(key: str, number: int) -> bytes:
    return b"%s=%d %s" % (key.encode(), number, PADDING)


def number_in(value: bytes, key: str) -> int:
    """The number of a value that belongs to ``key``; -1 for anything else."""
    name, _, rest = value.partition(b"=")
    number, _, padding = rest.partition(b" ")
    whole = name == key.encode() and number.isdigit() and padding == PADDING
    return int(number) if whole else -1
