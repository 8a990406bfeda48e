"""The session guard on a real broker and a real Redis: acks, barriers, liveness, checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stele.domain.commands import Advance, AdvanceFence, ClaimCoordinator
from stele.domain.model.requests import named
from stele.session_guard.check import (
    GuardUnavailable,
    RefusedWrite,
    check_session,
    check_version,
    nodes_key,
    read_guard,
)
from stele.stack.redis import RedisServer
from tests.deployment.process import Start, services
from tests.services.world import LogWriter, fake_nodes, log_writer

pytestmark = pytest.mark.broker


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, socket_timeout=2, socket_connect_timeout=2) as found:
        yield found


async def start_joining(writer: LogWriter) -> None:
    """Claim a term, and open the first join in its first state."""
    await writer.submit(ClaimCoordinator("test", 1))
    opening = Advance(term=1, version=1, open=((named("join-n1"),),))
    assert (await writer.submit(opening)).applied


async def test_barrier_completes_once_all_nodes_applied_and_drained(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    async with fake_nodes(kafka, writer, "n1") as nodes:
        guard = await start("session_guard")
        await nodes["n1"].join()
        nodes["n1"].applies = False
        await start_joining(writer)
        path = "/v1/barrier"
        waiting = await guard.until(path, lambda b: not b["complete"], "n1 to be behind")
        assert [b["node_id"] for b in waiting["blockers"]] == ["n1"]
        longer = await guard.until(
            path,
            lambda b: b["blockers"] and b["blockers"][0]["blocking_for_s"] > 0.5,
            "how long n1 blocks",
        )
        assert "has applied epoch" in longer["blockers"][0]["why"]
        nodes["n1"].old_version = 1
        nodes["n1"].applies = True
        draining = await guard.until(
            path, lambda b: "older than" in json.dumps(b), "n1 to hold an old version"
        )
        assert not draining["complete"]
        nodes["n1"].old_version = None
        done = await guard.until(path, lambda b: b["complete"], "the barrier")
        assert done["satisfied"] and done["blockers"] == []
        assert (await guard.get("/v1/barrier?epoch=999999"))["complete"] is False
        assert (await guard.get("/v1/barrier?epoch=x"))["code"] == "invalid_request"


async def test_version_and_session_are_checked_with_one_read(
    kafka: str, writer: LogWriter, start: Start, redis: Redis
) -> None:
    cluster = writer.cluster
    with pytest.raises(GuardUnavailable, match="session-guard"):
        await check_version(redis, cluster, 1)
    async with fake_nodes(kafka, writer, "n1") as nodes:
        guard = await start("session_guard")
        await nodes["n1"].join()
        await start_joining(writer)
        await writer.submit(AdvanceFence(1, 2))
        await guard.until("/v1/position", lambda p: p["epoch"] == writer.image.epoch, "the log")
        await guard.until("/healthz", lambda h: h["ok"] and not h["reason"], "Redis to be written")
        in_redis = await redis.hget(nodes_key(cluster), "n1")
        assert in_redis is not None
        assert json.loads(in_redis)["node_id"] == "n1"
        state = await read_guard(redis, cluster)
        assert (state.version, state.fence_version) == (2, 2)
        await check_version(redis, cluster, 2)
        with pytest.raises(RefusedWrite, match="older than the fence 2"):
            await check_version(redis, cluster, 1)
        with pytest.raises(RefusedWrite, match="not open"):
            await check_session(redis, cluster, "a-session")
        with pytest.raises(RefusedWrite, match="not open"):
            await check_session(redis, cluster, "")
        assert (await guard.get("/v1/check?version=2"))["ok"] is True
        assert (await guard.get("/v1/check?version=1&session=x"))["ok"] is False
        assert (await guard.get("/v1/check"))["code"] == "invalid_request"


async def test_checks_fail_closed_without_redis_and_the_guard_reports_it(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "redis")
    server.start()
    try:
        server.wait_ready()
        async with (
            log_writer(kafka, topics) as writer,
            services(kafka, topics, server.url, tmp_path) as start,
            Redis.from_url(server.url, socket_timeout=1, socket_connect_timeout=1) as redis,
        ):
            guard = await start("session_guard")
            await until_known(redis, writer.cluster)
            server.kill()
            with pytest.raises(GuardUnavailable, match="does not answer"):
                await check_version(redis, writer.cluster, 1)
            await guard.until("/healthz", lambda h: "degraded" in h["reason"], "a sentence")
            assert (await guard.get("/healthz"))["ok"] is True
            server.start()
            server.wait_ready()
            await until_known(redis, writer.cluster)
            await guard.until("/healthz", lambda h: not h["reason"], "to be well again")
    finally:
        server.stop()


async def test_redis_keys_expire_without_a_guard(
    writer: LogWriter, start: Start, redis: Redis
) -> None:
    guard = await start("session_guard", guard_ttl_s=1, refresh_s=0.2)
    await until_known(redis, writer.cluster)
    guard.kill()
    await until_unknown(redis, writer.cluster)


async def until_known(redis: Redis, cluster: str) -> None:
    await _until(redis, cluster, known=True)


async def until_unknown(redis: Redis, cluster: str) -> None:
    await _until(redis, cluster, known=False)


async def _until(redis: Redis, cluster: str, *, known: bool) -> None:
    what = "written" if known else "expired"
    async with asyncio.timeout(90) as _limit:
        while True:
            try:
                await check_version(redis, cluster, 1)
                answered = True
            except (GuardUnavailable, RefusedWrite):
                answered = False
            if answered == known:
                return
            await asyncio.sleep(0.05)
    raise AssertionError(f"the guard's key was not {what}")
