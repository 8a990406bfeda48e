"""The states of a stack's brokers and Redis, by whether they accept connections.

A server that starts or hangs is a running process but accepts none.
"""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec

from stele.cli.places import StackFile

CONNECT_S: Final = 0.5
"""Limit of a connection. On one machine a live server accepts it at once."""
RUNNING: Final = "running"
DOWN: Final = "down"


def with_servers(stack: StackFile) -> StackFile:
    """Return the stack with the current states of its servers."""
    replace, redis = msgspec.structs.replace, stack.redis
    return replace(
        stack,
        brokers=tuple(replace(b, state=_state(b.state, b.address)) for b in stack.brokers),
        redis=replace(redis, state=_state(redis.state, urlsplit(redis.url).netloc)),
    )


def all_run(stack: StackFile) -> bool:
    """Return True if every process runs, by ``with_servers``."""
    states = [stack.redis.state, *(broker.state for broker in stack.brokers)]
    states += [service.state for service in stack.services]
    return all(state == RUNNING for state in states)


def _state(told: str, address: str) -> str:
    """Return the stack's state of a stopped server, else the state by a connection.

    The connection goes to the first of ``host:port,...``. A host may be in brackets.
    """
    if told not in ("", RUNNING):
        return told
    first = urlsplit(f"//{address.partition(',')[0]}")
    try:
        socket.create_connection((first.hostname or "", first.port or 0), CONNECT_S).close()
    except (OSError, ValueError):
        return DOWN
    return RUNNING
