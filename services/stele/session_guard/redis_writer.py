"""Keeps Redis current: all of it at each epoch and at each refresh, so a flushed Redis is soon whole.

What may be written when is in ``redis_script.py``. This is the loop around it: it takes proofs, remembers the
greatest (log_id, epoch) that Redis was ever seen to show, and never offers an older one.
"""

import asyncio
import math
import time
import uuid
from typing import Final

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError

from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger
from stele.runtime.retries import until_it_works
from stele.runtime.service import wait_at_most
from stele.session_guard import metrics
from stele.session_guard.check import guard_key, nodes_key, session_field
from stele.session_guard.guard import Guard
from stele.session_guard.permissions import Permissions
from stele.session_guard.proof import NEVER, Proofs
from stele.session_guard.redis_script import VACANCY_MS, WRITE, Written, parse_answer
from stele.session_guard.settings import SessionGuardSettings

ANSWERS_A_WRITE: Final = 3
"""At most: Redis's time is learnt, a vacancy is met, the value is taken."""

log = get_logger(__name__)


class RedisWriter:
    """The loop that writes; ``trouble`` says why Redis is not current, empty when it is."""

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
        self._redis = redis or connect(settings)
        self._changed = asyncio.Event()
        self._nonce = uuid.uuid4().hex
        self._shown: tuple[str, int] = ("", 0)
        """The greatest place that Redis was ever seen to show, whoever wrote it."""
        self._redis_ahead_ms = math.nan
        """Redis's time less this process's monotonic time, at the least; not a number until it was told."""
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
                    self._changed.clear()
                    await self._bring_up_to_date()

    async def _bring_up_to_date(self) -> None:
        """Write what is true now, if that can be proven. Raises what Redis raises."""
        self.trouble = self._why_not(self._guard.permissions()) or await self._write_now()
        metrics.redis_up.set(0 if self.trouble else 1)

    async def _write_now(self) -> str:
        """Why Redis is not current now; empty when it is."""
        try:
            async with asyncio.timeout(2 * self._settings.redis_timeout_s):
                written = await self._write()
        except (RedisError, OSError, TimeoutError) as error:
            if not self.trouble.startswith("Redis is away"):
                log.warning("Redis is away", error=repr(error))
            self.trouble = f"Redis is away: {error!r}"
            metrics.redis_writes.labels("failed").inc()
            metrics.redis_up.set(0)
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
                return "the proof of this guard was too old when it came to Redis"

    def _why_not(self, now: Permissions) -> str:
        """A guard that may be behind must not keep old permissions alive, nor bring them back."""
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

    async def _write(self) -> Written:
        """Offer the newest, up to the answer that settles it."""
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

    async def _call(self) -> Written:
        """The script, once."""
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

    def _learn(self, written: Written, now_s: float) -> None:
        """The answer was made before ``now_s``: so Redis's clock is at least this far ahead of ours."""
        self._redis_ahead_ms = written.redis_now_ms - now_s * 1000
        self._shown = max(self._shown, written.place)
        if written.vacancy != self._vacancy:
            self._vacancy, self._vacancy_seen_at_s = written.vacancy, now_s

    def _by_redis_clock_ms(self, at_s: float) -> int:
        """When that was, by Redis's clock, at the earliest; 0, which is always too late, while unknown."""
        if math.isnan(self._redis_ahead_ms) or at_s == NEVER:
            return 0
        return max(0, math.floor(at_s * 1000 + self._redis_ahead_ms))

    def _nodes(self) -> list[str | bytes]:
        return [
            part
            for node in self._guard.nodes()
            for part in (node.node_id, msgspec.json.encode(node))
        ]


def connect(settings: SessionGuardSettings) -> Redis | RedisCluster:
    """A client of one server, or of a cluster."""
    timeout_s = settings.redis_timeout_s
    kind = RedisCluster if settings.redis_cluster else Redis
    client: Redis | RedisCluster = kind.from_url(
        settings.redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
    )
    return client


def _fields(now: Permissions, cluster_id: str, state_id: bytes) -> list[str | int]:
    sessions = [part for session in now.sessions for part in (session_field(session), 1)]
    return [
        *("version", now.version),
        *("fence_version", now.fence_version),
        *("cluster_id", cluster_id),
        *("state_id", state_id.hex()),
        *sessions,
    ]
