"""Tokens of who changes something by HTTP, and their hashes: 256 random bits need no salt."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.datastructures import Headers

TOKEN_BYTES: Final = 32
TOKEN_FORM: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,256}")
"""What may stand behind ``Bearer`` (RFC 6750)."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def authorization_of(headers: Headers) -> str:
    """All that stand there: two are none, of which one would count here, and the other where a proxy looks."""
    return ", ".join(headers.getlist("authorization"))


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
