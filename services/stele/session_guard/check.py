"""Check a fencing token or a session with one read of Redis, from any process that works for the
cluster.

    await check_version(redis, "prod", version, log_id)     # raises RefusedWrite, or GuardUnavailable
    await check_session(redis, "prod", session, log_id)

Pass the log id of the answer that contained the version or the session. A recovered log does not
contain the fences of lost epochs. With the id such work is refused; without it only numbers are
compared.

Both fail closed: without permission, the caller must stop. A value counts only for ``ttl`` after
the moment for which a guard has proven it. The age is measured by the clock of the answering Redis,
plus the time of the read. A permission was thus true at some moment at most ``ttl`` before the call
began.

Create the client with ``socket_timeout`` and ``socket_connect_timeout``. A call takes at most
``timeout_s`` anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError

# Permissions at one epoch, and the reasons to refuse work that carries a version or a session.
#
# Pure, and imports neither the log nor Kafka: foreign processes decide by the same functions as
# the guard itself.


class Permissions(msgspec.Struct, frozen=True):
    """Permissions at ``epoch`` of the log ``log_id``. A later incarnation has a greater id."""

    log_id: str
    epoch: int
    version: int
    fence_version: int
    sessions: tuple[str, ...]

    @property
    def place(self) -> tuple[str, int]:
        """Position over all logs of the cluster. Published values never go back behind it."""
        return self.log_id, self.epoch


def other_log(log_id: str, now_log_id: str, epoch: int) -> str:
    """Return why work that began under log ``log_id`` is refused; empty when it is permitted or
    has no log id.

    Its epoch may have been lost in the recovery, and with it the fence that would refuse the work.
    """
    if log_id in ("", now_log_id):
        return ""
    return (
        f"This work began by log {log_id[:64]}, which was recovered since as {now_log_id} (epoch {epoch}): "
        "read the newest topology and start again."
    )


def stale_version(version: int, fence_version: int, epoch: int) -> str:
    """Return why work of ``version`` is refused; empty when it is permitted."""
    if version >= fence_version:
        return ""
    return (
        f"Version {version} is older than the fence {fence_version} (epoch {epoch}): "
        "read the newest topology and start again."
    )


def session_not_open(session: str, open_sessions: Collection[str], epoch: int) -> str:
    """Return why work under ``session`` is refused; empty when it is permitted."""
    if session and session in open_sessions:
        return ""
    return (
        f"Session {session or '(none)'} is not open at epoch {epoch}: "
        "give up the work that carries it."
    )


TIMEOUT_S: Final = 2.0

_READ: Final = """
local time = redis.call('TIME')
local value = redis.call('HMGET', KEYS[1], 'log_id', 'epoch', 'version', 'fence_version',
  'proved_at_ms', 'ttl_ms', ARGV[1])
return {time[1] * 1000 + math.floor(time[2] / 1000), redis.call('PTTL', KEYS[1]), value}
"""


class GuardUnavailable(Exception):
    """The state is unknown: Redis does not answer, or no session-guard keeps it current.

    Stop the work.
    """


class RefusedWrite(Exception):
    """The version is fenced out, the session is not open, or both are of another log.

    Stop the work.
    """


class GuardState(msgspec.Struct, frozen=True):
    """The permissions of the cluster ``age_s`` seconds before the answer."""

    log_id: str
    epoch: int
    version: int
    fence_version: int
    age_s: float


def guard_key(cluster: str) -> str:
    """Return the key.

    Its braces are a hash tag: a Redis Cluster keeps all keys of one cluster in one slot.
    """
    return f"stele:{{{cluster}}}:guard"


def nodes_key(cluster: str) -> str:
    return f"stele:{{{cluster}}}:nodes"


def session_field(session: str) -> str:
    """Return the field of the guard's key that exists while the session is open."""
    return f"session:{session}"


async def read_guard(
    redis: Redis | RedisCluster, cluster: str, timeout_s: float = TIMEOUT_S
) -> GuardState:
    """Read the state once. Raises GuardUnavailable."""
    state, _ = await _read(redis, cluster, "", timeout_s)
    return state


async def check_version(
    redis: Redis | RedisCluster,
    cluster: str,
    version: int,
    log_id: str = "",
    timeout_s: float = TIMEOUT_S,
) -> GuardState:
    """Return when requests of topology ``version`` are permitted.

    Raises RefusedWrite, GuardUnavailable.
    """
    state, _ = await _read(redis, cluster, "", timeout_s)
    why = other_log(log_id, state.log_id, state.epoch)
    why = why or stale_version(version, state.fence_version, state.epoch)
    if why:
        raise RefusedWrite(why)
    return state


async def check_session(
    redis: Redis | RedisCluster,
    cluster: str,
    session: str,
    log_id: str = "",
    timeout_s: float = TIMEOUT_S,
) -> GuardState:
    """Return when ``session`` is open. Raises RefusedWrite, GuardUnavailable."""
    state, is_open = await _read(redis, cluster, session, timeout_s)
    why = other_log(log_id, state.log_id, state.epoch)
    why = why or session_not_open(session, [session] if is_open else [], state.epoch)
    if why:
        raise RefusedWrite(why)
    return state


async def _read(
    redis: Redis | RedisCluster, cluster: str, session: str, timeout_s: float
) -> tuple[GuardState, bool]:
    """Return the state, and whether the session is open. Raises GuardUnavailable."""
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
    # A negative age means that Redis's clock was set back, or is another server's. Permit nothing
    # by it.
    age_ms = now_ms - proved_at_ms
    if not (age_ms >= 0 and age_ms + took_ms < ttl_ms and 0 < ttl_left_ms <= ttl_ms):
        raise GuardUnavailable(
            f"What '{key}' shows was proven {age_ms} ms ago, counts for {ttl_ms} ms, and the read took "
            f"{took_ms:.0f} ms: check that the session-guard reaches the log, and Redis's clock."
        )
    log_id = value[0].decode() if isinstance(value[0], bytes) else str(value[0])
    age_s = (age_ms + took_ms) / 1000
    return GuardState(log_id, epoch, version, fence_version, age_s), value[6] is not None
