"""Check a fencing token or a session with one read of Redis, from any process that works for the cluster.

    await check_version(redis, "prod", version)      # raises Refused, or GuardUnavailable
    await check_session(redis, "prod", session)

Both fail closed: whoever cannot be told that the work may go on must not go on. The client should be
made with ``socket_timeout`` and ``socket_connect_timeout``; a call takes at most ``timeout_s`` anyway.
"""

import asyncio
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

TIMEOUT_S: Final = 2.0


class GuardUnavailable(Exception):
    """Nobody can say: Redis does not answer, or no session guard keeps it current. Do not go on."""


class Refused(Exception):
    """The version is fenced out, or the session is not open. Stop the work that carries it."""


class GuardState(msgspec.Struct, frozen=True):
    """What the cluster says now; ``session`` is the open one, or empty."""

    epoch: int
    version: int
    fence_version: int
    session: str


def guard_key(cluster: str) -> str:
    return f"stele:{cluster}:guard"


def nodes_key(cluster: str) -> str:
    return f"stele:{cluster}:nodes"


async def read_guard(redis: Redis, cluster: str, timeout_s: float = TIMEOUT_S) -> GuardState:
    """One HMGET. Raises GuardUnavailable."""
    key = guard_key(cluster)
    fields = ["epoch", "version", "fence_version", "session"]
    try:
        async with asyncio.timeout(timeout_s):
            found = await redis.hmget(key, fields)
    except (RedisError, OSError, TimeoutError) as error:
        raise GuardUnavailable(f"Redis does not answer ({error!r}); try again later.") from error
    values = [value.decode() if isinstance(value, bytes) else value for value in found]
    epoch, version, fence_version, session = values
    if epoch is None or version is None or fence_version is None or session is None:
        raise GuardUnavailable(
            f"Redis has no '{key}': start the cluster's session-guard, or wait until it has caught up."
        )
    return GuardState(int(epoch), int(version), int(fence_version), session)


async def check_version(
    redis: Redis, cluster: str, version: int, timeout_s: float = TIMEOUT_S
) -> GuardState:
    """Return when requests of topology ``version`` may go on. Raises Refused, GuardUnavailable."""
    state = await read_guard(redis, cluster, timeout_s)
    if version < state.fence_version:
        raise Refused(
            f"Version {version} is older than the fence {state.fence_version} (epoch {state.epoch}): "
            "read the newest topology and start again."
        )
    return state


async def check_session(
    redis: Redis, cluster: str, session: str, timeout_s: float = TIMEOUT_S
) -> GuardState:
    """Return when ``session`` is open. Raises Refused, GuardUnavailable."""
    state = await read_guard(redis, cluster, timeout_s)
    if not session or session != state.session:
        raise Refused(
            f"Session {session or '(none)'} is not open; at epoch {state.epoch} the open one is "
            f"{state.session or '(none)'}: give up the work that carries it."
        )
    return state
