"""Whether a stack's brokers and its Redis take connections; nobody supervises them as the services are."""

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
    replace = msgspec.structs.replace
    return replace(
        stack,
        brokers=tuple(replace(each, state=_state(each.address)) for each in stack.brokers),
        redis=replace(stack.redis, state=_state(urlsplit(stack.redis.url).netloc)),
    )


def all_run(stack: StackFile) -> bool:
    """Whether every process runs, by ``with_servers``."""
    states = [stack.redis.state, *(broker.state for broker in stack.brokers)]
    states += [service.state for service in stack.services]
    return all(state == RUNNING for state in states)


def _state(address: str) -> str:
    """Of the first server of ``host:port,...``; a host may be in brackets."""
    first = urlsplit(f"//{address.partition(',')[0]}")
    try:
        socket.create_connection((first.hostname or "", first.port or 0), CONNECT_S).close()
    except (OSError, ValueError):
        return DOWN
    return RUNNING
