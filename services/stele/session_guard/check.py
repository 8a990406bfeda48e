"""Check a fencing token or a session with one read of Redis, from any process that works for the cluster.

    await check_version(redis, "prod", version, log_id)     # raises Refused, or GuardUnavailable
    await check_session(redis, "prod", session, log_id)

The log's id is that of the answer which told the version or the session. A log that was recovered does not
know what fences of lost epochs had refused: by the id such work is refused, without it only numbers are
compared.

Both fail closed: whoever cannot be told that the work may go on must not go on. What is read counts only for
``ttl`` after the moment for which a guard has proven it, by the clock of the Redis that answers and less the
time that the answer took. So a permission was true at some moment not more than ``ttl`` before the call began.

The client should be made with ``socket_timeout`` and ``socket_connect_timeout``; a call takes at most
``timeout_s`` anyway.
"""

import asyncio
import time
from typing import Final

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError

from stele.session_guard.permissions import other_log, session_not_open, stale_version

TIMEOUT_S: Final = 2.0

_READ: Final = """
local time = redis.call('TIME')
local value = redis.call('HMGET', KEYS[1], 'log_id', 'epoch', 'version', 'fence_version',
  'proved_at_ms', 'ttl_ms', ARGV[1])
return {time[1] * 1000 + math.floor(time[2] / 1000), redis.call('PTTL', KEYS[1]), value}
"""


class GuardUnavailable(Exception):
    """Nobody can say: Redis does not answer, or no session guard keeps it current. Do not go on."""


class Refused(Exception):
    """The version is fenced out, the session is not open, or both are of another log. Stop the work."""


class GuardState(msgspec.Struct, frozen=True):
    """What the cluster permitted ``age_s`` before the answer."""

    log_id: str
    epoch: int
    version: int
    fence_version: int
    age_s: float


def guard_key(cluster: str) -> str:
    """The braces are a hash tag: a Redis Cluster keeps all keys of one cluster in one slot."""
    return f"stele:{{{cluster}}}:guard"


def nodes_key(cluster: str) -> str:
    return f"stele:{{{cluster}}}:nodes"


def session_field(session: str) -> str:
    """The field of the guard's key that is there while the session is open."""
    return f"session:{session}"


async def read_guard(
    redis: Redis | RedisCluster, cluster: str, timeout_s: float = TIMEOUT_S
) -> GuardState:
    """One read. Raises GuardUnavailable."""
    state, _ = await _read(redis, cluster, "", timeout_s)
    return state


async def check_version(
    redis: Redis | RedisCluster,
    cluster: str,
    version: int,
    log_id: str = "",
    timeout_s: float = TIMEOUT_S,
) -> GuardState:
    """Return when requests of topology ``version`` may go on. Raises Refused, GuardUnavailable."""
    state, _ = await _read(redis, cluster, "", timeout_s)
    why = other_log(log_id, state.log_id, state.epoch)
    why = why or stale_version(version, state.fence_version, state.epoch)
    if why:
        raise Refused(why)
    return state


async def check_session(
    redis: Redis | RedisCluster,
    cluster: str,
    session: str,
    log_id: str = "",
    timeout_s: float = TIMEOUT_S,
) -> GuardState:
    """Return when ``session`` is open. Raises Refused, GuardUnavailable."""
    state, is_open = await _read(redis, cluster, session, timeout_s)
    why = other_log(log_id, state.log_id, state.epoch)
    why = why or session_not_open(session, [session] if is_open else [], state.epoch)
    if why:
        raise Refused(why)
    return state


async def _read(
    redis: Redis | RedisCluster, cluster: str, session: str, timeout_s: float
) -> tuple[GuardState, bool]:
    """The state, and whether the session is open."""
    key, began_s = guard_key(cluster), time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            now_ms, ttl_left_ms, value = await redis.eval(_READ, 1, key, session_field(session))
    except (RedisError, OSError, TimeoutError) as error:
        raise GuardUnavailable(f"Redis does not answer ({error!r}); try again later.") from error
    took_ms = (time.monotonic() - began_s) * 1000
    if any(field is None for field in value[:6]):
        raise GuardUnavailable(
            f"Redis has no '{key}': start the cluster's session-guard, or wait until it has caught up."
        )
    epoch, version, fence_version, proved_at_ms, ttl_ms = (int(field) for field in value[1:6])
    age_ms = now_ms - proved_at_ms
    if not (age_ms >= 0 and age_ms + took_ms < ttl_ms and 0 < ttl_left_ms <= ttl_ms):
        raise GuardUnavailable(
            f"What '{key}' shows was proven {age_ms} ms ago, counts for {ttl_ms} ms, and the read took "
            f"{took_ms:.0f} ms: see whether the session-guard reaches the log, and Redis's clock."
        )
    log_id = value[0].decode() if isinstance(value[0], bytes) else str(value[0])
    age_s = (age_ms + took_ms) / 1000
    return GuardState(log_id, epoch, version, fence_version, age_s), value[6] is not None
