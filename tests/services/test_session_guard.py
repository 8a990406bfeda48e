"""The session guard on a real broker and a real Redis: crashes, pauses, a second guard, lost servers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from stele.log.flows import flow_topic
from stele.runtime.live_flow import SESSION_TIMEOUT_S
from stele.session_guard.check import GuardUnavailable, RefusedWrite, check_version
from stele_harness.stack.redis import RedisServer
from tests.deployment.commands import delete_topic
from tests.deployment.process import Service, Start, services
from tests.services.world import FakeNode, LogWriter, fake_nodes, log_writer

pytestmark = pytest.mark.broker

NAMES = "n1 n2 n3"
RECOVERY_S = 150.0
WATCH_S = 0.02
"""Pause between two polls, so that polling does not starve the guard."""


def all_are(liveness: str) -> Callable[[Any], bool]:
    return lambda nodes: len(nodes) == 3 and {node["liveness"] for node in nodes} == {liveness}


@pytest.fixture
async def nodes(kafka: str, writer: LogWriter) -> AsyncIterator[dict[str, FakeNode]]:
    """Return three nodes that have joined and send heartbeats."""
    async with fake_nodes(kafka, writer, NAMES) as found:
        for node in found.values():
            await node.join()
        yield found


async def guard_of(start: Start, instance: str = "", **settings: object) -> Service:
    """Start a guard and wait until it reports all nodes as up."""
    guard = await start("session_guard", instance, **settings)
    await guard.until("/v1/nodes", all_are("up"), "all nodes to be up")
    return guard


async def watch(
    guard: Service,
    seen: set[str],
    stop: asyncio.Event,
    names: Collection[str] = tuple(NAMES.split()),
) -> None:
    """Record each liveness that the guard reports, over a new connection each time, until the stop."""
    while not stop.is_set():
        try:
            rows = await guard.get("/v1/nodes")
            seen.update(row["liveness"] for row in rows if row["node_id"] in names)
        except httpx.TransportError:  # the guard is down or paused
            pass
        await asyncio.sleep(WATCH_S)


async def test_restarted_guard_derives_liveness_from_the_acks_topic(
    nodes: dict[str, FakeNode], start: Start
) -> None:
    guard = await guard_of(start, heartbeat_timeout_s=2)
    nodes["n2"].alive = False
    last_epoch = nodes["n2"].acked_epoch
    await guard.until("/v1/nodes", lambda n: n[1]["liveness"] == "down", "n2 to be down")
    guard.kill()
    await guard.start()
    seen, stop = set[str](), asyncio.Event()
    watching = asyncio.create_task(watch(guard, seen, stop, {"n1", "n3"}))
    rows = await guard.until(
        "/v1/nodes",
        lambda n: n[1]["silent_for_s"] is not None and n[1]["epoch"] == last_epoch,
        "n2's last ack to be read, after those before it",
    )
    assert rows[1]["node_id"] == "n2"
    assert rows[1]["silent_for_s"] > 2.0
    assert rows[1]["liveness"] == "unknown"
    rows = await guard.until("/v1/nodes", lambda n: n[1]["liveness"] == "down", "n2 to be down")
    assert [row["liveness"] for row in rows] == ["up", "down", "up"]
    nodes["n2"].alive = True
    await guard.until("/v1/nodes", all_are("up"), "n2 to be up again")
    stop.set()
    await watching
    assert "down" not in seen


async def test_paused_guard_reports_no_node_down_and_affects_no_other_guard(
    nodes: dict[str, FakeNode], start: Start
) -> None:
    """The pause is longer than the heartbeat timeout and the session in the group."""
    first, second = await asyncio.gather(
        guard_of(start, "guard-a", heartbeat_timeout_s=2),
        guard_of(start, "guard-b", heartbeat_timeout_s=2),
    )
    by_first, by_second, stop = set[str](), set[str](), asyncio.Event()
    watching = [asyncio.create_task(watch(first, by_first, stop))]
    for pause_s in (2.5, SESSION_TIMEOUT_S + 0.5):
        second.process.signal(signal.SIGSTOP)
        await asyncio.sleep(pause_s)  # the fault
        second.process.signal(signal.SIGCONT)
        if len(watching) == 1:
            watching.append(asyncio.create_task(watch(second, by_second, stop)))
        await second.until("/v1/nodes", all_are("up"), "all to be up again", RECOVERY_S)
        await asyncio.sleep(0.5)  # a fault that the watch would record
        assert "down" not in by_second, pause_s
    stop.set()
    await asyncio.gather(*watching)
    assert by_first == {"up"}
    assert "down" not in by_second


async def test_guard_is_unhealthy_if_the_acks_topic_is_deleted(
    nodes: dict[str, FakeNode], start: Start, kafka: str, topics: str
) -> None:
    guard = await guard_of(start)
    for node in nodes.values():
        node.alive = False
    topic = flow_topic(topics, "acks")
    await asyncio.to_thread(delete_topic, kafka, topic)
    sick = await guard.until("/healthz", lambda h: not h["ok"], "the guard to be unhealthy")
    assert topic in sick["reason"] and "no such topic" in sick["reason"]
    rows = await guard.get("/v1/nodes")
    assert {row["liveness"] for row in rows} <= {"up", "unknown"}


async def test_two_guards_with_one_instance_id_report_it_and_no_node_as_down(
    nodes: dict[str, FakeNode], start: Start
) -> None:
    first = await guard_of(start, "same", heartbeat_timeout_s=2)
    seen, stop = set[str](), asyncio.Event()
    watching = asyncio.create_task(watch(first, seen, stop))
    second = await start("session_guard", "same", heartbeat_timeout_s=2)
    for guard in (first, second):
        await guard.until(
            "/healthz", lambda h: "STELE_INSTANCE_ID" in h["reason"], "it to be said", 60.0
        )
    stop.set()
    await watching
    assert "down" not in seen


async def until_known(redis: Redis, cluster: str) -> None:
    """Wait until Redis permits or refuses a version."""
    async with asyncio.timeout(240):
        while True:
            with contextlib.suppress(GuardUnavailable):
                with contextlib.suppress(RefusedWrite):
                    await check_version(redis, cluster, 1)
                return
            await asyncio.sleep(0.05)


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
