"""Free TCP ports on loopback that stay free until the process that gets one binds it."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

LOOPBACK = "127.0.0.1"

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes a port
# between its choice here and the bind in the child.
FIRST_PORT = 20_000
LAST_PORT = 31_999
ATTEMPTS = 1_000

Front = Callable[[str, int], int]
"""Places a proxy in front of a server, given its name and port.

Returns the port for all other processes.
"""
PortOf = Callable[[str], int]
"""Returns a free port for the server of this name."""

_given: dict[int, socket.socket] = {}
"""Claimed ports, each with a UDP socket of the same number, which is not used otherwise.

While this process lives, no other takes the port, even if the server has not started or is
restarting.
"""
_lock = threading.Lock()
_chance = random.Random(os.getpid())


class NoFreePort(Exception):
    """Every port that was tried is in use."""


def no_front(_: str, port: int) -> int:
    """Return the port itself: there is no proxy."""
    return port


def free_port() -> int:
    """Return an unused port; never the same twice, in this process or another.

    Raises NoFreePort.
    """
    with _lock:
        for _ in range(ATTEMPTS):
            port = _chance.randint(FIRST_PORT, LAST_PORT)
            if _take(port):
                return port
    raise NoFreePort(f"No free port between {FIRST_PORT} and {LAST_PORT} on {LOOPBACK}.")


def any_port(_: str) -> int:
    """Return any free port. Raises NoFreePort."""
    return free_port()


class KeptPorts:
    """Ports by the name of the server, kept in a file.

    A kept port is used again if it is still free. Addresses in the log and in browsers therefore
    remain valid.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept = dict[str, int]()
        with suppress(OSError, msgspec.DecodeError):  # without the file, any port is used
            self._kept = msgspec.json.decode(file.read_bytes(), type=dict[str, int])

    def give(self, name: str) -> int:
        """Return the port of a server. Raises NoFreePort."""
        kept = self._kept.get(name, 0)
        with _lock:
            is_kept = FIRST_PORT <= kept <= LAST_PORT and _take(kept)
        self._kept[name] = kept if is_kept else free_port()
        return self._kept[name]

    def save(self) -> None:
        """Write the file. Raises OSError."""
        self._file.write_bytes(msgspec.json.encode(self._kept))


def _take(port: int) -> bool:
    """Claim a port. Return False if it is claimed or in use."""
    if port in _given:
        return False
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind((LOOPBACK, port))
        if _is_free(port):
            _given[port] = claim
    except OSError:
        pass
    finally:
        if port not in _given:
            claim.close()
    return port in _given


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
