"""Which process has opened a connection: the system's table of sockets, read at most once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import psutil

CLIENT: Final = "client"
"""Whoever is no process of the stack."""
TRIES: Final = 2


class Peers:
    """Names by local port. ``names`` tells the stack's processes by process id, as they are now."""

    def __init__(self, names: Callable[[], Mapping[int, str]]) -> None:
        self._names = names
        self._reading = asyncio.Lock()
        self._read_at_s = float("-inf")
        self._ports: dict[int, str] = {}

    async def name_of(self, port: int) -> str:
        """The table is read after the call began; whoever else waits meanwhile shares the reading."""
        loop = asyncio.get_running_loop()
        for _ in range(TRIES):
            asked_s = loop.time()
            async with self._reading:
                if self._read_at_s <= asked_s:
                    self._read_at_s = loop.time()
                    self._ports = await asyncio.to_thread(_read, self._names())
            if port in self._ports:
                return self._ports[port]
        return CLIENT


def _read(names: Mapping[int, str]) -> dict[int, str]:
    found = dict[int, str]()
    for connection in psutil.net_connections("tcp"):
        name = names.get(connection.pid or 0)
        if name is not None and connection.laddr and connection.raddr:
            found[connection.laddr.port] = name
    return found
