"""Clients of the data: they write and read by quorum through any node, and record every answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import aiohttp

from stele_harness.demo.load import UNDONE_CODES, ask_quorum
from stele_simulator.live.history import DataOp, History

KEYSPACE: Final = "data"
CLIENTS: Final = 6
SCRATCH: Final = "scratch"
"""A keyspace that is truncated, and whose replication changes."""
KEYS: Final = 24
SCRATCH_KEYS: Final = 12
SCRATCH_SHARE: Final = 0.35
FILLER_KEYS: Final = 300
FILLER_BYTES: Final = 20_000
"""Data enough that streaming takes a moment."""
MEAN_PAUSE_S: Final = 0.08
TIMEOUT_S: Final = 7.0
"""Limit of a request. A node answers within 5 s, so the outcome of a later answer is unknown."""
FILL_TRIES: Final = 100
READ_BACK_TRIES: Final = 20
READ_BACK_PAUSE_S: Final = 0.5
NO_KEYSPACE: Final = b'"unknown_keyspace"'

Members = Callable[[], dict[str, str]]
"""Addresses by node id of those that serve data."""


def keyspace_of(key: str) -> str:
    """Return the keyspace of a key: ``key7`` is in ``KEYSPACE``, ``scratch/key7`` in another one."""
    keyspace, is_other, _ = key.partition("/")
    return keyspace if is_other else KEYSPACE


def name_of(key: str) -> str:
    """The key without its keyspace."""
    return key.rpartition("/")[2]


def all_keys() -> list[str]:
    """Every key that clients may have written."""
    names = [f"key{n}" for n in range(KEYS)] + [f"filler{n}" for n in range(FILLER_KEYS)]
    return names + [f"{SCRATCH}/key{n}" for n in range(SCRATCH_KEYS)]


class DataClients:
    """Six closed loops over the same keys. Every value is written once."""

    def __init__(
        self, http: aiohttp.ClientSession, history: History, members: Members, seed: int
    ) -> None:
        self.longest_gap_s = 0.0
        """Longest time without an acknowledged write."""
        self._http = http
        self._history = history
        self._members = members
        self._chance = random.Random(seed)
        self._stop = asyncio.Event()
        self._written = 0
        self._acknowledged_at: float | None = None

    async def fill(self) -> None:
        """Filler keys, each written until it is acknowledged."""
        todo = iter(range(FILLER_KEYS))

        async def some(client: int) -> None:
            for number in todo:
                await self._write_until_done(client, f"filler{number}")

        await asyncio.gather(*(some(client) for client in range(CLIENTS)))

    async def work(self) -> None:
        await asyncio.gather(*(self._work(client) for client in range(CLIENTS)))

    def stop(self) -> None:
        self._stop.set()

    async def read_back(self) -> list[str]:
        """Read every key through every member; the keys that gave no answer however often asked."""
        todo = iter([(key, node) for key in all_keys() for node in self._members()])
        silent = list[str]()

        async def some(client: int) -> None:
            for key, node in todo:
                for _ in range(READ_BACK_TRIES):
                    if (await self._read(client, key, node)).done:
                        break
                    await asyncio.sleep(READ_BACK_PAUSE_S)
                else:
                    silent.append(f"{key} through {node}")

        await asyncio.gather(*(some(client) for client in range(CLIENTS)))
        return silent

    async def _work(self, client: int) -> None:
        while not self._stop.is_set():
            key = f"key{self._chance.randrange(KEYS)}"
            if self._chance.random() < SCRATCH_SHARE:
                key = f"{SCRATCH}/key{self._chance.randrange(SCRATCH_KEYS)}"
            if self._chance.random() < 0.5:
                await self._write(client, key)
            else:
                await self._read(client, key)
            await asyncio.sleep(self._chance.expovariate(1 / MEAN_PAUSE_S))

    async def _write(self, client: int, key: str, size: int = 0) -> DataOp:
        self._written += 1
        value = f"{client}-{self._written}"
        operation = await self._ask(client, key, self._some_node(), value, size)
        if operation.done:
            now = operation.ended
            if self._acknowledged_at is not None:
                self.longest_gap_s = max(self.longest_gap_s, now - self._acknowledged_at)
            self._acknowledged_at = now
        return operation

    async def _write_until_done(self, client: int, key: str) -> None:
        for _ in range(FILL_TRIES):
            if (await self._write(client, key, FILLER_BYTES)).done:
                return
            await asyncio.sleep(READ_BACK_PAUSE_S)
        raise TimeoutError(f"{key} was not written, however often asked")

    async def _read(self, client: int, key: str, node: str = "") -> DataOp:
        return await self._ask(client, key, node or self._some_node(), None, 0)

    def _some_node(self) -> str:
        members = sorted(self._members())
        return self._chance.choice(members) if members else ""

    async def _ask(self, client: int, key: str, node: str, value: str | None, size: int) -> DataOp:
        began = self._history.now()
        status, body = await self._call(key, node, value, size)
        missing = status == 404 and NO_KEYSPACE not in body
        done = status == 200 or (value is None and missing)
        found = value
        if value is None and status == 200:
            found = value_in(body)
        operation = DataOp(
            began=began,
            ended=self._history.now(),
            client=client,
            node=node,
            write=value is not None,
            key=key,
            value=found,
            done=done,
            known=done or 400 <= status < 500 or any(code in body for code in UNDONE_CODES),
            answer="" if done else f"{status} {body[:100].decode(errors='replace')}",
        )
        self._history.add(operation)
        return operation

    async def _call(self, key: str, node: str, value: str | None, size: int) -> tuple[int, bytes]:
        """Return the HTTP status, or a number below 1 when there was no answer, and the body."""
        address = self._members().get(node)
        if address is None:
            return 400, b"no such member"
        data = None if value is None else value.encode() + b" " + b"." * size
        method = "GET" if value is None else "PUT"
        url = f"{address}/v1/data/{keyspace_of(key)}/{name_of(key)}"
        return await ask_quorum(self._http, method, url, TIMEOUT_S, data)


def value_in(body: bytes) -> str:
    """The value without its padding; anything else than a value is shown as it is, and was never written."""
    value, _, padding = body.partition(b" ")
    return value.decode(errors="replace") if not padding.strip(b".") else repr(body[:80])
