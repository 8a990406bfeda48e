"""Content of Redis on a real server: its lifetime, and the effects of a flush, a second guard or a delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError

from stele.domain.names import NodeState
from stele.session_guard.check import (
    GuardUnavailable,
    RefusedWrite,
    check_session,
    check_version,
    guard_key,
    nodes_key,
    read_guard,
)
from stele.session_guard.redis_writer import (
    VACANCY_MS,
    WRITE,
    RedisWriter,
    ScriptAnswer,
    parse_answer,
)
from stele.session_guard.settings import SessionGuardSettings
from stele_harness.stack.ports import LOOPBACK, free_port
from stele_harness.stack.process import Program, spawn
from stele_harness.stack.redis import find_redis_server
from tests.node.world import World
from tests.polling import until
from tests.session_guard.world import GuardedWorld

TTL_S = 1.0


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, socket_timeout=60, socket_connect_timeout=60) as client:
        yield client


def writer_of(world: GuardedWorld, url: str, cluster: str, **more: Any) -> RedisWriter:
    settings = SessionGuardSettings(
        **{"redis_url": url, "cluster": cluster, "guard_ttl_s": TTL_S, "refresh_s": 0.1, **more}
    )
    return RedisWriter(settings, world.follower, world.guard, world.proofs)


async def until_shown(redis: Redis, cluster: str, *, shown: bool = True) -> float:
    """Wait until the guard's state is shown, or no longer is. Return the time."""
    end_s = time.monotonic() + 240.0
    while time.monotonic() < end_s:
        try:
            await read_guard(redis, cluster)
            is_shown = True
        except GuardUnavailable:
            is_shown = False
        if is_shown == shown:
            return time.monotonic()
        await asyncio.sleep(0.005)
    raise AssertionError(f"not within 240 s: the state of {cluster} to be shown: {shown}")


async def offer(redis: Redis, cluster: str, *, at_ms: int, **changed: object) -> ScriptAnswer:
    """Run the script as a guard does that is at epoch 5 and has no nodes."""
    given: dict[str, Any] = {"log_id": "a", "epoch": 5, "ttl_ms": 5000, "vacancy": "", **changed}
    fields: list[str | int] = ["version", 3, "fence_version", 3]
    keys = (guard_key(cluster), nodes_key(cluster))
    head = (given["log_id"], given["epoch"], at_ms, given["ttl_ms"], given["vacancy"])
    answer = await redis.eval(WRITE, 2, *keys, *head, "me", VACANCY_MS, len(fields), *fields)
    return parse_answer(answer)


async def now_ms(redis: Redis) -> int:
    seconds, micros = await redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def show(redis: Redis, cluster: str, **changed: object) -> ScriptAnswer:
    """Show the state as of now, over any content."""
    first = await offer(redis, cluster, at_ms=await now_ms(redis), **changed)
    changed["vacancy"] = first.vacancy
    return await offer(redis, cluster, at_ms=await now_ms(redis), **changed)


async def test_versions_and_sessions_are_checked_with_one_read(redis: Redis, cluster: str) -> None:
    world = await GuardedWorld.make()
    world.world.start_join()
    while not world.world.session:
        world.world.advance()
    session = world.world.session
    writer = writer_of(world, redis_url_of(redis), cluster)
    task = asyncio.create_task(writer.run())
    try:
        with pytest.raises(GuardUnavailable, match="session-guard"):
            await check_version(redis, f"{cluster}-other", 1)
        await until_shown(redis, cluster)
        state = await check_session(redis, cluster, session)
        assert state.epoch == world.world.image.epoch
        assert state.log_id == world.world.image.log_id.hex()
        assert 0 <= state.age_s < TTL_S
        await check_version(redis, cluster, world.world.version)
        await check_version(redis, cluster, world.world.version, state.log_id)
        with pytest.raises(RefusedWrite, match=f"by log {'0a' * 16}, which .* as {state.log_id}"):
            await check_version(redis, cluster, world.world.version, "0a" * 16)
        with pytest.raises(RefusedWrite, match="by log"):
            await check_session(redis, cluster, session, "0a" * 16)
        with pytest.raises(RefusedWrite, match="not open"):
            await check_session(redis, cluster, "another")
        with pytest.raises(RefusedWrite, match="not open"):
            await check_session(redis, cluster, "")
        world.world.fence()
        await until(lambda: writer._shown[1] == world.world.image.epoch, "the fence to be written")
        with pytest.raises(RefusedWrite, match="older than the fence"):
            await check_version(redis, cluster, world.world.version - 1)
        nodes = await redis.hkeys(nodes_key(cluster))
        here = {n for n, node in world.world.image.membership.nodes.items() if is_here(node)}
        assert {*nodes} == {name.encode() for name in here}
    finally:
        await end(task, writer, world)


def is_here(node: object) -> bool:
    return getattr(node, "state", None) is not NodeState.LEFT


def redis_url_of(redis: Redis) -> str:
    where = redis.connection_pool.connection_kwargs
    return f"redis://{where['host']}:{where['port']}/0"


async def end(task: asyncio.Task[None], writer: RedisWriter, world: GuardedWorld) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await writer.close()
    await world.proofs.close()


async def test_old_fence_is_not_shown_longer_than_the_ttl_after_its_proof(
    redis: Redis, cluster: str
) -> None:
    """The guard is cut off and the fence rises. Redis permits the older version only for the time to live."""
    world = await GuardedWorld.make()
    world.world.start_join()
    old = world.world.version - 1
    writer = writer_of(world, redis_url_of(redis), cluster)
    task = asyncio.create_task(writer.run())
    try:
        await until_shown(redis, cluster)
        await check_version(redis, cluster, old)
        world.cut_off()
        fenced_s = time.monotonic()
        world.world.fence()
        world.world.advance()
        world.world.fence()
        last_permitted_s = fenced_s
        while True:
            asked_s = time.monotonic()
            try:
                await check_version(redis, cluster, old)
                last_permitted_s = asked_s
            except GuardUnavailable:
                break
        assert last_permitted_s - fenced_s <= TTL_S
        await asyncio.sleep(0.3)  # three refreshes of a guard without a proof
        with pytest.raises(GuardUnavailable):
            await check_version(redis, cluster, old)
        assert "end" in writer.trouble or "lately" in writer.trouble
    finally:
        await end(task, writer, world)


async def test_late_write_counts_from_its_proof(redis: Redis, cluster: str) -> None:
    await show(redis, cluster)
    proved_ms = await now_ms(redis) - 4_000
    assert (await offer(redis, cluster, at_ms=proved_ms, epoch=6)).result == "written"
    assert 0 < await redis.pttl(guard_key(cluster)) <= 1_000
    assert 0 < await redis.pexpiretime(guard_key(cluster)) <= proved_ms + 5_000
    late_ms = await now_ms(redis) - 5_000
    assert (await offer(redis, cluster, at_ms=late_ms, epoch=7)).result == "too_late"
    assert (await read_guard(redis, cluster)).epoch == 6


async def test_proof_from_the_future_is_refused(redis: Redis, cluster: str) -> None:
    """The clock of Redis was set back since it reported its time."""
    await show(redis, cluster)
    ahead_ms = await now_ms(redis) + 1_000
    assert (await offer(redis, cluster, at_ms=ahead_ms, epoch=6)).result == "too_late"


@pytest.mark.parametrize(
    ("offered", "result"),
    [
        ({"log_id": "a", "epoch": 4}, "overtaken"),
        ({"log_id": "a", "epoch": 6}, "written"),
        ({"log_id": "A", "epoch": 99}, "overtaken"),
        ({"log_id": "b", "epoch": 1}, "written"),
    ],
)
async def test_shown_state_never_goes_back(
    redis: Redis, cluster: str, offered: dict[str, object], result: str
) -> None:
    await show(redis, cluster, log_id="a", epoch=5)
    answer = await offer(redis, cluster, at_ms=await now_ms(redis), **offered)
    assert answer.result == result
    shown = (offered["log_id"], offered["epoch"]) if result == "written" else ("a", 5)
    assert answer.place == shown
    state = await read_guard(redis, cluster)
    assert (state.log_id, state.epoch) == shown


async def test_older_proof_of_the_same_epoch_changes_nothing(redis: Redis, cluster: str) -> None:
    await show(redis, cluster)
    before = await redis.pexpiretime(guard_key(cluster))
    older_ms = await now_ms(redis) - 2_000
    assert (await offer(redis, cluster, at_ms=older_ms)).result == "proved_already"
    assert await redis.pexpiretime(guard_key(cluster)) == before


async def test_write_after_a_flush_needs_the_token_of_that_flush(
    redis: Redis, cluster: str
) -> None:
    first = await offer(redis, cluster, at_ms=await now_ms(redis))
    assert first.result == "vacant" and first.vacancy
    with pytest.raises(GuardUnavailable):
        await read_guard(redis, cluster)
    await redis.delete(guard_key(cluster))  # a second flush
    again = await offer(redis, cluster, at_ms=await now_ms(redis), vacancy=first.vacancy)
    assert again.result == "vacant" and again.vacancy != first.vacancy
    third = await offer(redis, cluster, at_ms=await now_ms(redis), vacancy=again.vacancy)
    assert third.result == "written"
    assert (await read_guard(redis, cluster)).epoch == 5


async def test_lagging_guard_does_not_restore_an_older_fence_after_a_flush(
    redis: Redis, cluster: str
) -> None:
    world = World()
    world.start_join()
    current, lagging = await GuardedWorld.make(world), await GuardedWorld.make(world)
    url = redis_url_of(redis)
    ahead = writer_of(current, url, cluster, guard_ttl_s=30)
    behind = writer_of(lagging, url, cluster, guard_ttl_s=30, redis_timeout_s=0.5)
    old = world.version - 1
    try:
        assert await lagging.proofs.within(1.0)
        lagging.freeze()
        world.fence()
        world.advance()
        world.fence()
        assert await current.proofs.asked_after(time.monotonic(), 1.0)
        await ahead._bring_up_to_date()
        assert ahead.trouble == ""
        with pytest.raises(RefusedWrite):
            await check_version(redis, cluster, old)
        await behind._bring_up_to_date()
        assert "has not read yet" in behind.trouble
        await redis.delete(guard_key(cluster), nodes_key(cluster))
        assert lagging.proofs.age_s() < 30  # so it may write, were it not for the flush
        for _ in range(3):
            await behind._bring_up_to_date()
            assert behind.trouble
            with pytest.raises(GuardUnavailable):
                await check_version(redis, cluster, old)
        await ahead._bring_up_to_date()
        with pytest.raises(RefusedWrite):
            await check_version(redis, cluster, old)
    finally:
        for each, guarded in ((ahead, current), (behind, lagging)):
            await each.close()
            await guarded.proofs.close()


async def test_lagging_guard_new_to_redis_writes_nothing_after_a_flush(
    redis: Redis, cluster: str
) -> None:
    """It knows of no greater epoch: only the token prevents its write."""
    world = World()
    lagging = await GuardedWorld.make(world)
    assert await lagging.proofs.within(1.0)
    lagging.freeze()
    world.start_join()
    world.fence()
    behind = writer_of(lagging, redis_url_of(redis), cluster, guard_ttl_s=30, redis_timeout_s=0.5)
    try:
        await behind._bring_up_to_date()
        assert behind.trouble
        with pytest.raises(GuardUnavailable):
            await read_guard(redis, cluster)
        lagging.thaw()
        await lagging.follower.wait_for_epoch(world.image.epoch)
        assert await lagging.proofs.asked_after(time.monotonic(), 1.0)
        await behind._bring_up_to_date()
        assert behind.trouble == ""
        assert (await read_guard(redis, cluster)).epoch == world.image.epoch
    finally:
        await behind.close()
        await lagging.proofs.close()


async def test_flushed_redis_is_filled_again(redis: Redis, cluster: str) -> None:
    world = await GuardedWorld.make()
    writer = writer_of(world, redis_url_of(redis), cluster)
    task = asyncio.create_task(writer.run())
    try:
        await until_shown(redis, cluster)
        await redis.delete(guard_key(cluster), nodes_key(cluster))
        flushed_s = time.monotonic()
        assert await until_shown(redis, cluster) - flushed_s < 2.0
        assert await redis.exists(nodes_key(cluster))
    finally:
        await end(task, writer, world)


@pytest.mark.parametrize("how", ["no time to live", "proved in the future", "proved too long ago"])
async def test_value_without_a_valid_proof_is_refused(redis: Redis, cluster: str, how: str) -> None:
    await show(redis, cluster)
    await check_version(redis, cluster, 3)
    key, now = guard_key(cluster), await now_ms(redis)
    if how == "no time to live":
        await redis.persist(key)
    elif how == "proved in the future":
        await redis.hset(key, "proved_at_ms", str(now + 60_000))
    else:
        await redis.hset(key, "proved_at_ms", str(now - 6_000))
    with pytest.raises(GuardUnavailable, match="was proven"):
        await check_version(redis, cluster, 3)


@pytest.fixture
async def cluster_url(tmp_path: Path) -> AsyncIterator[str]:
    """Return the URL of a member of a Redis Cluster that owns every slot."""
    port, log = free_port(), tmp_path / "redis.log"
    options = ("--port", str(port), "--bind", LOOPBACK, "--dir", str(tmp_path), "--save", "")
    # The bus would take the port 10,000 above, which any connection may have.
    bus = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    argv = [find_redis_server(), *options, *bus]
    server = spawn(Program("redis-cluster", argv, stdout=log, stderr=log))
    url = f"redis://{LOOPBACK}:{port}/0"
    try:
        async with Redis.from_url(url) as client, asyncio.timeout(240):
            while not await owns_all_slots(client):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield url
    finally:
        await asyncio.to_thread(server.stop)


async def owns_all_slots(client: Redis) -> bool:
    try:
        if not int((await client.cluster("INFO"))["cluster_slots_assigned"]):
            await client.cluster("ADDSLOTSRANGE", 0, 16383)
        return bool((await client.cluster("INFO"))["cluster_state"] == "ok")
    except RedisConnectionError:  # it is starting
        return False


@pytest.mark.parametrize("kind", [Redis, RedisCluster])
async def test_redis_cluster_runs_the_script_and_the_checks(
    cluster_url: str, cluster: str, kind: type[Redis] | type[RedisCluster]
) -> None:
    world = await GuardedWorld.make()
    is_cluster = kind is RedisCluster
    ttl_s = 30.0  # on a busy machine the slots are known only after a second
    writer = writer_of(world, cluster_url, cluster, redis_cluster=is_cluster, guard_ttl_s=ttl_s)
    client = kind.from_url(cluster_url)
    try:
        assert await world.proofs.within(1.0)
        await writer._bring_up_to_date()
        assert writer.trouble == ""
        assert (await check_version(client, cluster, world.world.version)).age_s < ttl_s
    finally:
        await client.aclose()
        await writer.close()
        await world.proofs.close()
