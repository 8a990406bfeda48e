"""Libraries as simulated nodes have them: HTTP between nodes, the size of a disk."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import aiohttp
from yarl import URL

from stele_simulator.processes.module_stand_in import ModuleStandIn
from stele_simulator.processes.web import WebTransport

if TYPE_CHECKING:
    from stele_simulator.processes.disk import SimPath
    from stele_simulator.processes.machine import Machine

GIB: Final = 1024**3


class Session:
    """As ``aiohttp.ClientSession``."""

    def __init__(self, machine: "Machine") -> None:
        self._transport = WebTransport(machine)

    def post(
        self, url: str, data: bytes, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> "Call":
        return Call(self._transport, url, data, headers, timeout.total)

    async def close(self) -> None:
        """Do nothing."""


class Call:
    """The result of ``post``: enter it with ``async with``, and read the answer inside."""

    def __init__(
        self,
        transport: WebTransport,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        total_s: float | None,
    ) -> None:
        self.status = 0
        self.url = URL(url)
        self._asked = transport, url, body, headers, total_s
        self._content = b""

    async def __aenter__(self) -> Self:
        """Raises OSError, TimeoutError."""
        transport, url, body, headers, total_s = self._asked
        self.status = await transport.ask(
            url, self._take, total_s, headers=headers, method="POST", body=body
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""

    async def read(self) -> bytes:
        return self._content

    def _take(self, _: int, piece: bytes) -> None:
        self._content += piece


class Aiohttp(ModuleStandIn):
    """As the module ``aiohttp``, as far as nodes ask each other with it."""

    def ClientSession(self, **_: object) -> Session:  # noqa: N802 - the module's own name
        return Session(self._who())

    def TCPConnector(self, **_: object) -> None:  # noqa: N802 - the module's own name
        return None


class Usage(NamedTuple):
    total: int
    free: int


class Shutil(ModuleStandIn):
    """As the module ``shutil``: a simulated disk has room, unless it is full."""

    def disk_usage(self, _: object) -> Usage:
        return Usage(10 * GIB, 0 if self._who().disk.full else 9 * GIB)

    def rmtree(self, folder: "SimPath", **_: bool) -> None:
        folder.remove_all()
