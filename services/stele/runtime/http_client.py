"""How a process connects to others by HTTP; with TLS by authorities of this machine, or of SSL_CERT_FILE."""

from __future__ import annotations

import os
import ssl
from typing import Any, Final

import aiohttp

from stele.runtime.http_tls import AUTHORITIES

_VARIABLES: Final = (AUTHORITIES, "SSL_CERT_DIR")
"""OpenSSL's own. aiohttp reads them when it is imported, which may be long before."""


def connector(**options: Any) -> aiohttp.TCPConnector:
    """Make it inside the event loop; options are aiohttp's."""
    given = any(os.environ.get(name) for name in _VARIABLES)
    return aiohttp.TCPConnector(ssl=ssl.create_default_context() if given else True, **options)
