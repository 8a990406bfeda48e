"""Which process has opened a connection: the system's table of sockets, read at most once at a time.

Only the files of the stack's processes are looked through: others on the machine may have many.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

CLIENT: Final = "client"
"""A process outside the stack."""
TRIES: Final = 2


class Peers:
    """Names by local port. ``names`` tells the stack's processes by process id, as they are now."""

    def __init__(self, names: Callable[[], Mapping[int, str]]) -> None:
        self._names = names
        self._reading = asyncio.Lock()
        self._read_at_s = float("-inf")
        self._ports: dict[int, str] = {}

    async def name_of(self, port: int) -> str:
        """Return the name of a port's owner. The table is read after the call begins, and concurrent callers
        share one read.
        """
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
    """Return the names by the local ports that their processes have open; of Linux's /proc."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = map(str.split, lines)
    ports = {f"socket:[{each[9]}]": int(each[1].partition(":")[2], 16) for each in fields}
    found = dict[int, str]()
    for pid, name in names.items():
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):  # it may already be closed
                port = ports.get(str(file.readlink()))
                if port is not None:
                    found[port] = name
    return found
