"""Keeps Redis current: all of it at each epoch and at each refresh, so a flushed Redis is soon whole.

One script writes both keys or nothing. A guard that is behind never overwrites one that is ahead; only
what an earlier cluster of the same name has left is overwritten, which the cluster's id tells. Both keys
expire, so that checks fail closed once no guard that knows the log's end writes any more.
"""

import asyncio
import contextlib
import random
import time
from typing import Final

import msgspec
from confluent_kafka import KafkaException
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stele.domain.image import Image
from stele.log.errors import LogError
from stele.runtime.follow import Followed
from stele.runtime.logs import get_logger
from stele.session_guard import metrics
from stele.session_guard.check import guard_key, nodes_key
from stele.session_guard.guard import Guard
from stele.session_guard.settings import SessionGuardSettings

FIRST_BACK_OFF_S: Final = 0.1
LAST_BACK_OFF_S: Final = 5.0

log = get_logger(__name__)

_WRITE: Final = """
local known = redis.call('HMGET', KEYS[1], 'cluster_id', 'epoch')
if known[1] == ARGV[1] and tonumber(known[2]) and tonumber(known[2]) > tonumber(ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], 'cluster_id', ARGV[1], 'epoch', ARGV[2], 'version', ARGV[3],
  'fence_version', ARGV[4], 'session', ARGV[5], 'state_id', ARGV[6], 'updated_at_ms', ARGV[7])
redis.call('PEXPIRE', KEYS[1], ARGV[8])
redis.call('DEL', KEYS[2])
for i = 9, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[2], ARGV[8])
return 1
"""


class RedisWriter:
    """The loop that writes; ``trouble`` says why Redis is not current, empty when it is."""

    def __init__(self, settings: SessionGuardSettings, followed: Followed, guard: Guard) -> None:
        self.trouble = "Redis has not been written yet"
        self._settings = settings
        self._followed = followed
        self._guard = guard
        self._changed = asyncio.Event()
        self._confirmed_at_s = float("-inf")
        self._back_off_s = FIRST_BACK_OFF_S
        timeout_s = settings.redis_timeout_s
        self._redis = Redis.from_url(
            settings.redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
        )
        self._script = self._redis.register_script(_WRITE)
        followed.follower.listen(lambda _image, _epoch: self._changed.set())

    async def run(self) -> None:
        """Write until cancelled, and keep asking whether the log goes on."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._confirm(), name="confirm")
            group.create_task(self._keep_writing(), name="write")

    async def close(self) -> None:
        await self._redis.aclose()

    async def _confirm(self) -> None:
        """Note when this process was last known to have read the log to its end."""
        while True:
            asked_at_s = time.monotonic()
            try:
                await self._followed.follower.wait_for_end(self._settings.guard_ttl_s)
                self._confirmed_at_s = asked_at_s
            except (TimeoutError, KafkaException, LogError) as error:
                log.warning("the log's end is out of reach", why=repr(error))
            await asyncio.sleep(self._settings.refresh_s)

    async def _keep_writing(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._settings.refresh_s)
            self._changed.clear()
            self._guard.look()
            if self._is_current():
                await self._write_or_back_off()

    def _is_current(self) -> bool:
        """A guard that may be behind must not keep old permissions alive."""
        age_s = time.monotonic() - self._confirmed_at_s
        if age_s > self._settings.guard_ttl_s:
            self.trouble = "this guard has not read the log to its end lately"
        elif not self._guard.image.cluster:
            self.trouble = "the cluster has not been created yet"
        else:
            return True
        metrics.redis_up.set(0)
        return False

    async def _write_or_back_off(self) -> None:
        try:
            async with asyncio.timeout(2 * self._settings.redis_timeout_s):
                written = await self._write()
        except (RedisError, OSError, TimeoutError) as error:
            if not self.trouble:
                log.warning("Redis is away", error=repr(error))
            self.trouble = f"Redis is away: {error!r}"
            metrics.redis_writes.labels("failed").inc()
            metrics.redis_up.set(0)
            await asyncio.sleep(self._back_off_s * random.uniform(0.5, 1.0))
            self._back_off_s = min(LAST_BACK_OFF_S, 2 * self._back_off_s)
            self._changed.set()
            return
        metrics.redis_writes.labels("written" if written else "overtaken").inc()
        metrics.redis_up.set(1)
        self.trouble, self._back_off_s = "", FIRST_BACK_OFF_S

    async def _write(self) -> bool:
        """False when another guard has written a newer epoch."""
        image, cluster = self._guard.image, self._settings.cluster
        nodes = [
            part
            for node in self._guard.nodes()
            for part in (node.node_id, msgspec.json.encode(node))
        ]
        arguments = [*_fields(image), round(self._settings.guard_ttl_s * 1000), *nodes]
        keys = [guard_key(cluster), nodes_key(cluster)]
        return bool(await self._script(keys=keys, args=arguments))


def _fields(image: Image) -> list[str | int]:
    topology = image.topology.topology
    return [
        image.cluster_id,
        image.epoch,
        topology.version,
        topology.fence_version,
        topology.session,
        image.state_id.hex(),
        time.time_ns() // 1_000_000,
    ]
