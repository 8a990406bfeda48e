"""Tokens of HTTP callers, and their hashes. Tokens of 256 random bits need no salt."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.datastructures import Headers

TOKEN_BYTES: Final = 32
TOKEN_FORM: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,256}")
"""Form of a token after ``Bearer`` (RFC 6750)."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def authorization_of(headers: Headers) -> str:
    """Return all values of the header, joined. Two values match no token.

    Otherwise one of them might count here and the other at a proxy.
    """
    return ", ".join(headers.getlist("authorization"))


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
