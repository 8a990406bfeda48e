"""How a process connects to others by HTTP; with TLS by authorities of this machine, or of SSL_CERT_FILE."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any, Final

import aiohttp

from stele.runtime.http_tls import AUTHORITIES

_VARIABLES: Final = (AUTHORITIES, "SSL_CERT_DIR")
"""OpenSSL's own. aiohttp reads them when it is imported, which may be long before."""


def connector(**options: Any) -> aiohttp.TCPConnector:
    """Make it inside the event loop; options are aiohttp's."""
    given = tuple(os.environ.get(name, "") for name in _VARIABLES)
    return aiohttp.TCPConnector(ssl=_context(given) if any(given) else True, **options)


@cache
def _context(given: tuple[str, ...]) -> ssl.SSLContext:
    """One for a process: to read the authorities takes 20 ms."""
    return ssl.create_default_context()
