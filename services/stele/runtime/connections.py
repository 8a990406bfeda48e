"""How many connections a process has at one time: fewer than files that it may open, so that it can always ask
others, and whoever comes gets in as long as there are some on which nobody is answered.
"""

from __future__ import annotations

import asyncio
import resource
from itertools import islice
from typing import Final

MOST: Final = 8192
"""However many files may be open: each connection takes some ten kilobytes."""
LOOKED_AT: Final = 64
FOR_OTHERS: Final = 4
"""One in so many files is not for connections that others open."""


class Connections:
    """Those on which nothing is answered, as long ago as they were last: these make room for new ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._waiting: dict[asyncio.Transport, None] = {}

    def add(self, transport: asyncio.Transport) -> bool:
        """Count it in; whether there is room. If not it must be closed, which takes it out."""
        self._count += 1
        has_room = self._count <= self._most
        if not has_room and self._waiting:
            self._longest_waiting().abort()  # it takes itself out in a moment
            has_room = True
        if has_room:
            self._waiting[transport] = None
        return has_room

    def remove(self, transport: asyncio.Transport) -> None:
        """It has ended."""
        self._count -= 1
        self._waiting.pop(transport, None)

    def is_answered(self, transport: asyncio.Transport) -> None:
        """A whole request has come on it."""
        self._waiting.pop(transport, None)

    def waits(self, transport: asyncio.Transport) -> None:
        """Its request was answered, and another has not come."""
        self._waiting[transport] = None

    def _longest_waiting(self) -> asyncio.Transport:
        """One that has taken all of its last answer, if there is one among the first."""
        first = islice(self._waiting, LOOKED_AT)
        empty = (each for each in first if not each.get_write_buffer_size())
        found = next(empty, None) or next(iter(self._waiting))
        del self._waiting[found]
        return found


def most_connections() -> int:
    """As many as this process's files allow; more of these are asked for first, as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST * FOR_OTHERS // (FOR_OTHERS - 1)
    soft = raised(wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
    return max(1, min(MOST, soft - soft // FOR_OTHERS))


def raised(files: int) -> int:
    """The number of files that may be open, at least so many where that can be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return files if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    except (OSError, ValueError):
        return soft
    return files
