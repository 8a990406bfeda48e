"""Keeps Redis current: writes everything at each epoch and each refresh, so a flushed Redis is
soon complete.

``redis_script.py`` defines which writes are accepted. This is the loop around it: it takes proofs,
remembers the greatest (log_id, epoch) that Redis ever showed, and never offers an older one.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from typing import Final

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import MovedError, ReadOnlyError, RedisError

from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger
from stele.runtime.redis import connect_redis
from stele.runtime.retries import until_it_works
from stele.runtime.service import wait_at_most
from stele.session_guard import metrics
from stele.session_guard.check import Permissions, guard_key, nodes_key, session_field
from stele.session_guard.guard import Guard
from stele.session_guard.proof import NEVER, Proofs
from stele.session_guard.settings import SessionGuardSettings

# The only script that writes Redis, and its answers.
#
# It decides by Redis's own clock and by the value in Redis at that moment. Therefore a slow
# network, a paused process or a second guard cannot make Redis show an older value than before:
#
# - The value lives until ``ttl`` after its *proof*, not after its arrival. The guard computes when,
#   by Redis's clock, the proof's request was sent. Each answer of the script carries Redis's time. A
#   request sent at p was sent, by that clock, not before ``time - (answer received - p)``. This is
#   the earliest possible time. A write that arrives after proof + ttl changes nothing.
# - A value of a greater (log_id, epoch) is never replaced, nor one of the same epoch by an older
#   proof.
# - If Redis shows no value, a flush may have deleted it. The script then leaves a *vacancy*, a token
#   that permits nothing. It accepts a write only from a guard that names this token and whose proof
#   was requested after the guard had seen it. The value before the flush was in the log before the
#   flush. The proof's request came later, so the new value includes it. A second flush deletes the
#   token, and the procedure starts again.


VACANCY_MS: Final = 60_000
"""Lifetime of an unused token, in milliseconds. After that the next write creates another."""

WRITE: Final = """
local shown = redis.call('HMGET', KEYS[1], 'log_id', 'epoch', 'proved_at_ms', 'vacancy')
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local log_id, epoch, proved_at_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function answer(result)
  return {result, now_ms, shown[1] or '', tonumber(shown[2]) or 0, shown[4] or ''}
end

if not shown[1] then
  if not shown[4] then
    shown[4] = time[1] .. '.' .. time[2] .. '.' .. ARGV[6]
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('HSET', KEYS[1], 'vacancy', shown[4])
    redis.call('PEXPIRE', KEYS[1], ARGV[7])
  end
  if shown[4] ~= ARGV[5] then
    return answer('vacant')
  end
elseif shown[1] > log_id or (shown[1] == log_id and tonumber(shown[2]) > epoch) then
  return answer('overtaken')
elseif shown[1] == log_id and tonumber(shown[2]) == epoch and tonumber(shown[3]) > proved_at_ms then
  return answer('proved_already')
end
if proved_at_ms > now_ms or proved_at_ms + ttl_ms <= now_ms then
  return answer('too_late')
end

local fields, nodes = tonumber(ARGV[8]), #ARGV
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'log_id', log_id, 'epoch', epoch, 'proved_at_ms', ARGV[3], 'ttl_ms', ARGV[4])
for i = 9, 8 + fields, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
for i = 9 + fields, nodes, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIREAT', KEYS[1], proved_at_ms + ttl_ms)
redis.call('PEXPIREAT', KEYS[2], proved_at_ms + ttl_ms)
shown[1], shown[2] = log_id, epoch
return answer('written')
"""


class ScriptAnswer(msgspec.Struct, frozen=True):
    """The script's answer: ``result`` is one of the words above; the rest is what Redis shows
    now, and its time.
    """

    result: str
    redis_now_ms: int
    log_id: str
    epoch: int
    vacancy: str

    @property
    def place(self) -> tuple[str, int]:
        return self.log_id, self.epoch


def parse_answer(answer: list[bytes | int]) -> ScriptAnswer:
    result, now_ms, log_id, epoch, vacancy = answer
    return ScriptAnswer(_text(result), int(now_ms), _text(log_id), int(epoch), _text(vacancy))


def _text(value: bytes | int | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


ANSWERS_A_WRITE: Final = 3
"""Most calls for one write: learn Redis's time, find a vacancy, write the value."""

log = get_logger(__name__)


class RedisWriter:
    """The writing loop. ``trouble`` is why Redis is not current; empty when it is."""

    def __init__(
        self,
        settings: SessionGuardSettings,
        follower: LogFollower,
        guard: Guard,
        proofs: Proofs,
        redis: Redis | RedisCluster | None = None,
    ) -> None:
        self.trouble = "Redis has not been written yet"
        self._settings = settings
        self._guard = guard
        self._proofs = proofs
        self._redis = redis or connect_redis(settings, settings.redis_timeout_s)
        self._changed = asyncio.Event()
        self._nonce = uuid.uuid4().hex
        self._shown: tuple[str, int] = ("", 0)
        """The greatest position that Redis ever showed, whichever guard wrote it."""
        self._redis_ahead_ms = math.nan
        """Lower bound of Redis's time minus this process's monotonic time, in ms; NaN while
        unknown.
        """
        self._vacancy, self._vacancy_seen_at_s = "", NEVER
        follower.listen(lambda _image, _epoch: self._changed.set())

    async def run(self) -> None:
        """Write until cancelled, and keep proving that the image is current."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_proving(), name="prove")
            group.create_task(self._keep_writing(), name="write")

    async def close(self) -> None:
        await self._redis.aclose()

    async def _keep_proving(self) -> None:
        while True:
            await self._proofs.asked_after(time.monotonic(), self._settings.guard_ttl_s)
            await asyncio.sleep(self._settings.refresh_s)

    async def _keep_writing(self) -> None:
        while True:
            await wait_at_most(self._changed, self._settings.refresh_s)
            self._guard.look()
            async for attempt in until_it_works(on=(RedisError, OSError, TimeoutError)):
                with attempt:
                    # Clear before reading the image. An epoch that arrives during the write then
                    # causes another write.
                    self._changed.clear()
                    await self._bring_up_to_date()

    async def _bring_up_to_date(self) -> None:
        """Write the present permissions if they can be proven. Raises the errors of Redis."""
        self.trouble = self._why_not(self._guard.permissions()) or await self._write_now()
        metrics.redis_up.set(0 if self.trouble else 1)

    async def _write_now(self) -> str:
        """Write once. Return why Redis is not current; empty when it is."""
        try:
            async with asyncio.timeout(2 * self._settings.redis_timeout_s):
                written = await self._write()
        except (RedisError, OSError, TimeoutError) as error:
            if not self.trouble.startswith("Redis is away"):
                log.warning("Redis is away", error=repr(error))
            self.trouble = f"Redis is away: {error!r}"
            if isinstance(error, MovedError):
                self.trouble += ". It is a Redis Cluster: set STELE_REDIS_CLUSTER=true"
            metrics.redis_writes.labels("failed").inc()
            metrics.redis_up.set(0)
            if isinstance(error, ReadOnlyError | MovedError):
                await self._reconnect()
            raise
        metrics.redis_writes.labels(written.result).inc()
        match written.result:
            case "written" | "proved_already":
                return ""
            case "overtaken":
                return f"Redis shows epoch {written.epoch}, which this guard has not read yet"
            case "vacant":
                return (
                    self._proofs.trouble or "Redis was empty, and this guard has no new proof yet"
                )
            case _:
                return "the proof of this guard was too old when it reached Redis"

    async def _reconnect(self) -> None:
        """Drop the connections to a server that is no longer the primary.

        That server keeps connections open and refuses each write, while the name in the URL leads a
        new connection to the next primary. The next primary has another clock.
        """
        self._redis_ahead_ms = math.nan
        await self._redis.aclose()  # the next call connects again

    def _why_not(self, now: Permissions) -> str:
        """Return why nothing may be written.

        A guard that may be behind must not extend or restore old permissions.
        """
        if not now.log_id:
            return "the cluster has not been created yet"
        if self._proofs.age_s() > self._settings.guard_ttl_s:
            return self._proofs.trouble or "this guard has not read the log to its end lately"
        if now.place < self._shown:
            return (
                f"Redis has shown epoch {self._shown[1]} of log {self._shown[0]}; this guard is at "
                f"epoch {now.epoch} of log {now.log_id}"
            )
        return ""

    async def _write(self) -> ScriptAnswer:
        """Offer the newest permissions, and repeat until an answer is final."""
        written = await self._call()
        for _ in range(ANSWERS_A_WRITE - 1):
            if written.result == "vacant":
                seen_at_s = self._vacancy_seen_at_s
                left_s = self._settings.redis_timeout_s
                if not await self._proofs.asked_after(seen_at_s, left_s):
                    break
            elif written.result != "too_late":
                break
            if self._guard.permissions().place < self._shown:
                break
            written = await self._call()
        return written

    async def _call(self) -> ScriptAnswer:
        """Call the script once."""
        now, cluster = self._guard.permissions(), self._settings.cluster
        fields = _fields(now, self._guard.image.cluster_id, self._guard.image.state_id)
        proven = self._proofs.asked_at_s
        answer = await self._redis.eval(
            WRITE,
            2,
            guard_key(cluster),
            nodes_key(cluster),
            now.log_id,
            now.epoch,
            self._by_redis_clock_ms(proven),
            math.floor(self._settings.guard_ttl_s * 1000),
            # Name the vacancy only with a proof that was requested after the vacancy was seen.
            self._vacancy if proven > self._vacancy_seen_at_s else "",
            self._nonce,
            VACANCY_MS,
            len(fields),
            *fields,
            *self._nodes(),
        )
        written = parse_answer(answer)
        self._learn(written, time.monotonic())
        return written

    def _learn(self, written: ScriptAnswer, now_s: float) -> None:
        """Store the answer, received at ``now_s``.

        It was made earlier, so Redis's clock is at least this far ahead.
        """
        self._redis_ahead_ms = written.redis_now_ms - now_s * 1000
        self._shown = max(self._shown, written.place)
        if written.vacancy != self._vacancy:
            self._vacancy, self._vacancy_seen_at_s = written.vacancy, now_s

    def _by_redis_clock_ms(self, at_s: float) -> int:
        """Return the earliest Redis time of the moment, in ms.

        The result is 0, always too late, while unknown.
        """
        if math.isnan(self._redis_ahead_ms) or at_s == NEVER:
            return 0
        return max(0, math.floor(at_s * 1000 + self._redis_ahead_ms))

    def _nodes(self) -> list[str | bytes]:
        return [
            part
            for node in self._guard.nodes()
            for part in (node.node_id, msgspec.json.encode(node))
        ]


def _fields(now: Permissions, cluster_id: str, state_id: bytes) -> list[str | int]:
    sessions = [part for session in now.sessions for part in (session_field(session), 1)]
    return [
        *("version", now.version),
        *("fence_version", now.fence_version),
        *("cluster_id", cluster_id),
        *("state_id", state_id.hex()),
        *sessions,
    ]
