"""Spans of time as people write them: ``90s``, ``1h30m``, ``2 d``."""

from __future__ import annotations

from stele.cli.errors import UsageError
from stele.words import given
from stele.words.given import MOST_S

__all__ = ["MOST_S", "span_ms"]


def span_ms(text: str, option: str) -> int:
    """Milliseconds, one at least; ``option`` is where it stands, for people. Raises UsageError."""
    try:
        return given.span_ms(text, option)
    except given.GivenError as error:
        raise UsageError(error.message, error.hint) from error
