"""Whether a stack's brokers and its Redis take connections: one that starts, or hangs, runs and does not."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec

from stele.cli.places import StackFile

CONNECT_S: Final = 0.5
"""On one machine a server that lives takes a connection at once."""
RUNNING: Final = "running"
DOWN: Final = "down"


def with_servers(stack: StackFile) -> StackFile:
    """The stack with the states that its servers have now."""
    replace, redis = msgspec.structs.replace, stack.redis
    return replace(
        stack,
        brokers=tuple(replace(b, state=_state(b.state, b.address)) for b in stack.brokers),
        redis=replace(redis, state=_state(redis.state, urlsplit(redis.url).netloc)),
    )


def all_run(stack: StackFile) -> bool:
    """Whether every process runs, by ``with_servers``."""
    states = [stack.redis.state, *(broker.state for broker in stack.brokers)]
    states += [service.state for service in stack.services]
    return all(state == RUNNING for state in states)


def _state(told: str, address: str) -> str:
    """What the stack says of a server that does not run, else how the first of ``host:port,...`` is.

    A host may be in brackets.
    """
    if told not in ("", RUNNING):
        return told
    first = urlsplit(f"//{address.partition(',')[0]}")
    try:
        socket.create_connection((first.hostname or "", first.port or 0), CONNECT_S).close()
    except (OSError, ValueError):
        return DOWN
    return RUNNING
