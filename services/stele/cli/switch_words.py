"""Words for switches of balancing."""

from __future__ import annotations

from stele.cli.output import clock
from stele.domain.schema.model import Balancing, Off


def switch_text(name: str, balancing: Balancing, *, expired: bool = False) -> str:
    """Return since when it is off, the actor, the reason and the end."""
    by = f" by {balancing.actor}" if balancing.actor else ""
    why = f" ({balancing.reason})" if balancing.reason else ""
    until = f", until {clock(balancing.until_ms)}" if balancing.until_ms else ""
    until += _grace(balancing)
    passed = ": that has passed, and it counts as on" if expired else ""
    return (
        f"{Off(name, balancing).words()} since epoch {balancing.off_since}{by}{why}{until}{passed}"
    )


def off_text(own: Balancing, keyspace: Balancing | None = None) -> str:
    """Return the note for a keyspace or table; empty if balancing is on for it."""
    if own.off_since:
        return f"balancing is off{_until(own)}"
    if keyspace is not None and keyspace.off_since:
        return f"balancing is off with its keyspace{_until(keyspace)}"
    return ""


def _until(balancing: Balancing) -> str:
    until = f" until {clock(balancing.until_ms)}" if balancing.until_ms else ""
    return until + _grace(balancing)


def _grace(balancing: Balancing) -> str:
    """Return when started work is cancelled."""
    at_ms = balancing.abort_at_ms
    return f", what had begun is cancelled at {clock(at_ms)}" if at_ms else ""
