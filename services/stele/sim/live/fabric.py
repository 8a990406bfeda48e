"""TCP proxies between the processes of a stack: who talks to whom can be cut, slowed and disturbed.

Each server has a proxy, whose port all others are told. Who opened a connection is read from the system's
table of sockets, so that a rule holds for pairs of processes, and for one direction of what they say.
Bytes that a cut holds back arrive when it ends, as TCP's do; nothing is reordered within a connection.
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

from stele.stack.ports import LOOPBACK, free_port

CHUNK_BYTES: Final = 64 * 1024
RETRANSMISSION_S: Final = 0.2
"""TCP's shortest wait before it sends a lost segment again; it doubles each time."""
LONGEST_RETRANSMISSION_S: Final = 3.2
BROKEN_OFF: Final = 0.05
"""Share of the losses that end their connection."""

NameOf = Callable[[int], Awaitable[str]]
"""Who has this local port open."""


class Rule(msgspec.Struct, frozen=True):
    """What happens to bytes from ``sources`` to ``targets``; an empty set stands for everybody.

    ``cut`` holds them back, ``delay_s`` is the mean of a random delay, ``loss`` the probability that a piece
    has to be sent again.
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


class Fabric:
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
        """Nobody listens for process ``name``: who connects is refused, as by a machine without it."""
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
        try:
            source = await self._name_of(writer.get_extra_info("peername")[1])
            await self._uncut(source, target)
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
                self._pump(source, target, reader, back), self._pump(target, source, there, writer)
            )
        finally:
            for each in (writer, back):
                each.transport.abort()

    async def _pump(
        self,
        source: str,
        target: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass on what ``source`` sends, and then the end of it, which a cut holds back too."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._way(source, target)
                writer.write(data)
                await writer.drain()
            await self._uncut(source, target)
            writer.write_eof()
        except (OSError, RuntimeError):
            await self._uncut(source, target)
            _reset(writer)

    async def _way(self, source: str, target: str) -> None:
        """Wait as long as a piece takes. Raises ConnectionResetError when it breaks the connection."""
        await self._uncut(source, target)
        rules = [rule for rule in self._rules if rule.holds_for(source, target)]
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
        await self._uncut(source, target)

    async def _uncut(self, source: str, target: str) -> None:
        while any(rule.cut and rule.holds_for(source, target) for rule in self._rules):
            changed = self._changed
            with contextlib.suppress(asyncio.TimeoutError):
                await changed.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off as the system does for a process that died: RST, not an orderly end."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
