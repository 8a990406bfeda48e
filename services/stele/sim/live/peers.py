"""Which process has opened a connection: Linux's table of sockets, read at most once at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

CLIENT: Final = "client"
"""Whoever is no process of the stack."""
TRIES: Final = 2
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, INODE = 1, 9
"""Columns of the tables: address and port in hexadecimal, and what a descriptor of the socket links to."""
SOCKET: Final = "socket:["


class Peers:
    """Names by local port. ``names`` tells the stack's processes by process id, as they are now."""

    def __init__(self, names: Callable[[], Mapping[int, str]]) -> None:
        self._names = names
        self._reading = asyncio.Lock()
        self._read_at_s = float("-inf")
        self._ports: dict[int, str] = {}
        self._files = set[tuple[int, str]]()
        """Descriptors, by process, that were no sockets: brokers have many, and to look at each takes long."""

    async def name_of(self, port: int) -> str:
        """The table is read after the call began; whoever else waits meanwhile shares the reading."""
        loop = asyncio.get_running_loop()
        for attempt in range(TRIES):
            asked_s = loop.time()
            async with self._reading:
                if self._read_at_s <= asked_s:
                    self._read_at_s = loop.time()
                    if attempt:  # what was a file may be closed, and a socket have its number
                        self._files.clear()
                    names = {**self._names(), os.getpid(): CLIENT}
                    self._ports = await asyncio.to_thread(self._read, names)
            if port in self._ports:
                return self._ports[port]
        return CLIENT

    def _read(self, names: Mapping[int, str]) -> dict[int, str]:
        owners = {inode: name for pid, name in names.items() for inode in self._sockets_of(pid)}
        found = dict[int, str]()
        for table in TABLES:
            for row in table.read_text().splitlines()[1:] if table.exists() else ():
                fields = row.split(maxsplit=INODE + 1)
                name = owners.get(fields[INODE])
                if name is not None:
                    found[int(fields[LOCAL].rpartition(":")[2], 16)] = name
        return found

    def _sockets_of(self, pid: int) -> set[str]:
        """Inodes of the sockets that a process has open; none when it has ended."""
        found = set[str]()
        with suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                if (pid, descriptor.name) in self._files:
                    continue
                with suppress(OSError):  # it is closed meanwhile
                    target = str(Path(descriptor).readlink())
                    if target.startswith(SOCKET):
                        found.add(target[len(SOCKET) : -1])
                    else:
                        self._files.add((pid, descriptor.name))
        return found
