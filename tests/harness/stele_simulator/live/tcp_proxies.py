"""TCP proxies between the processes of a stack, which cut, slow and disturb connections.

Each server has a proxy, and all others use the proxy's port. The client of a connection is found in the
system's table of sockets, so that a rule applies to pairs of processes and to one direction. Bytes that a cut
delays arrive when it ends, as with TCP. Nothing is reordered within a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from stele_harness.stack.ports import LOOPBACK, free_port

CHUNK_BYTES: Final = 64 * 1024
RETRANSMISSION_S: Final = 0.2
"""TCP's shortest wait before it sends a lost segment again; it doubles each time."""
LONGEST_RETRANSMISSION_S: Final = 3.2
BROKEN_OFF: Final = 0.05
"""Share of the losses that end their connection."""

NameOf = Callable[[int], Awaitable[str]]
"""Returns the name of the process that owns this local port."""


class Rule(msgspec.Struct, frozen=True):
    """Treatment of bytes from ``sources`` to ``targets``. An empty set means all processes.

    ``cut`` delays them until its end, ``delay_s`` is the mean of a random delay, ``loss`` the probability
    that a piece has to be sent again.
    """

    sources: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0

    def holds_for(self, source: str, target: str) -> bool:
        return (
            source != target
            and (not self.sources or source in self.sources)
            and (not self.targets or target in self.targets)
        )


@dataclass
class _Door:
    """``public`` leads to ``port`` of process ``name``; without a server it is shut."""

    name: str
    public: int
    port: int
    server: asyncio.Server | None = None

    def listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, self.public))
        listening.listen(128)
        return listening


@dataclass
class _Connection:
    """A connection from local ``port`` to process ``target``. Its source is looked up for the first rule."""

    port: int
    target: str
    source: str = ""


class TcpProxies:
    """All proxies, and the rules that hold now. Make it inside the event loop that it shall run in."""

    def __init__(self, name_of: NameOf, seed: int) -> None:
        self.connections = 0
        self.lost = 0
        """Pieces that had to be sent again, and connections that were broken off."""
        self._name_of = name_of
        self._chance = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._rules: list[Rule] = []
        self._changed = asyncio.Event()
        self._doors: list[_Door] = []
        self._tasks = set[asyncio.Task[None]]()

    def front(self, name: str, port: int) -> int:
        """A port that leads to ``port`` of process ``name``; may be called from any thread."""
        door = _Door(name, free_port(), port)
        listening = door.listen()
        self._loop.call_soon_threadsafe(self._open, door, listening)
        return door.public

    def refuse(self, name: str) -> None:
        """Refuse connections to process ``name``, as a machine without it does."""
        for door in self._doors:
            if door.name == name and door.server is not None:
                door.server.close()
                door.server = None

    async def accept(self, name: str) -> None:
        """Somebody listens again."""
        for door in self._doors:
            if door.name == name and door.server is None:
                await self._serve_at(door, door.listen())

    def impose(self, rules: Iterable[Rule]) -> None:
        self._set([*self._rules, *rules])

    def lift(self, rules: Iterable[Rule]) -> None:
        gone = list(rules)
        self._set([rule for rule in self._rules if not any(rule is each for each in gone)])

    def heal(self) -> None:
        """No rule holds any more."""
        self._set([])

    async def close(self) -> None:
        for door in self._doors:
            if door.server is not None:
                door.server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._changed.set()
        self._changed = asyncio.Event()

    def _open(self, door: _Door, listening: socket.socket) -> None:
        self._doors.append(door)
        self._spawn(self._serve_at(door, listening))

    async def _serve_at(self, door: _Door, listening: socket.socket) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(door.name, door.port, reader, writer)

        door.server = await asyncio.start_server(serve, sock=listening)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._tasks.add(this)
        this.add_done_callback(self._tasks.discard)
        connection = _Connection(writer.get_extra_info("peername")[1], target)
        try:
            await self._uncut(connection, forth=True)
            there, back = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            _reset(writer)
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        self.connections += 1
        try:
            await asyncio.gather(
                self._pump(connection, reader, back, forth=True),
                self._pump(connection, there, writer, forth=False),
            )
        finally:
            for each in (writer, back):
                each.transport.abort()

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        forth: bool,
    ) -> None:
        """Pass on what one side sends, and then the end of it, which a cut holds back too."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._way(connection, forth=forth)
                writer.write(data)
                await writer.drain()
            await self._uncut(connection, forth=forth)
            writer.write_eof()
        except (OSError, RuntimeError):
            await self._uncut(connection, forth=forth)
            _reset(writer)

    async def _way(self, connection: _Connection, *, forth: bool) -> None:
        """Wait as long as a piece takes. Raises ConnectionResetError when it breaks the connection."""
        await self._uncut(connection, forth=forth)
        rules = await self._rules_for(connection, forth=forth)
        if not rules:
            return
        loss = max(rule.loss for rule in rules)
        pause_s = sum(rule.delay_s * 2 * self._chance.random() for rule in rules)
        again_s = RETRANSMISSION_S
        while self._chance.random() < loss:
            self.lost += 1
            if self._chance.random() < BROKEN_OFF:
                raise ConnectionResetError
            pause_s += again_s
            again_s = min(again_s * 2, LONGEST_RETRANSMISSION_S)
        await asyncio.sleep(pause_s)
        await self._uncut(connection, forth=forth)

    async def _uncut(self, connection: _Connection, *, forth: bool) -> None:
        while any(rule.cut for rule in await self._rules_for(connection, forth=forth)):
            changed = self._changed
            with contextlib.suppress(asyncio.TimeoutError):
                await changed.wait()

    async def _rules_for(self, connection: _Connection, *, forth: bool) -> list[Rule]:
        """Return the rules that hold now for what the source (``forth``) or the target sends."""
        if not self._rules:
            return []  # a look-up reads the system's table of sockets, which takes a busy machine a second
        if not connection.source:
            connection.source = await self._name_of(connection.port)
        ends = (connection.source, connection.target)
        return [rule for rule in self._rules if rule.holds_for(*(ends if forth else ends[::-1]))]


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off as the system does for a process that died: RST, not an orderly end."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
