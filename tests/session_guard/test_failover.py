"""The guard follows a failover of real Redis servers: behind a name that moves, and by Sentinels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stele.runtime.redis import SentinelUrl, connect_redis, parse_sentinel_url
from stele.runtime.settings import ConfigurationError
from stele.session_guard.check import read_guard
from stele.session_guard.settings import SessionGuardSettings
from stele_harness.stack.ports import LOOPBACK, free_port
from stele_harness.stack.process import Program, spawn
from stele_harness.stack.redis import RedisServer, find_redis_server
from tests.session_guard.test_redis import TTL_S, writer_of
from tests.session_guard.world import GuardedWorld

DEADLINE_S = 240.0


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}") from None


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Redis, Redis]]:
    """Return a primary and a replica that is in step with it."""
    servers = [RedisServer(tmp_path / name) for name in ("first", "second")]
    clients = [Redis(host=LOOPBACK, port=server.port) for server in servers]
    try:
        for server in servers:
            server.start()
        for server in servers:
            await asyncio.to_thread(server.wait_ready)
        await clients[0].config_set("repl-diskless-sync-delay", 0)
        await clients[1].replicaof(LOOPBACK, servers[0].port)
        await until(lambda: is_in_step(clients[1]), "the replica to be in step")
        yield clients[0], clients[1]
    finally:
        for client in clients:
            await client.aclose()
        for server in servers:
            await asyncio.to_thread(server.stop)


def port_of(client: Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


async def is_in_step(replica: Redis) -> bool:
    return (await replica.info("replication")).get("master_link_status") == "up"


async def is_primary(server: Redis) -> bool:
    return bool((await server.info("replication"))["role"] == "master")


@asynccontextmanager
async def moving_name(target: list[int]) -> AsyncIterator[int]:
    """Yield a port whose new connections go to the last of ``target``. Old connections stay."""
    pipes = set[asyncio.Task[None]]()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, target[-1])
        for task in (
            asyncio.create_task(pipe(reader, far_writer)),
            asyncio.create_task(pipe(far_reader, writer)),
        ):
            pipes.add(task)
            task.add_done_callback(pipes.discard)

    server = await asyncio.start_server(accept, LOOPBACK, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in (*pipes,):
            task.cancel()


async def ask(sentinel: Any, *words: str) -> Any:
    return await sentinel.execute_command("SENTINEL", *words)


@asynccontextmanager
async def sentinel_of(primary: Redis, folder: Path) -> AsyncIterator[Redis]:
    """Yield a Sentinel that watches this server as ``guarded`` and knows its replica."""
    port, file, log = free_port(), folder / "sentinel.conf", folder / "sentinel.log"
    file.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {folder}\n"
        f"sentinel monitor guarded {LOOPBACK} {port_of(primary)} 1\n"
        "sentinel down-after-milliseconds guarded 500\n"
    )
    argv = [find_redis_server(), str(file), "--sentinel"]
    process = spawn(Program("sentinel", argv, stdout=log, stderr=log))
    client = Redis(host=LOOPBACK, port=port)

    async def knows_the_replica() -> bool:
        try:
            return bool(await ask(client, "REPLICAS", "guarded"))
        except RedisError:  # it is starting
            return False

    try:
        await until(knows_the_replica, "the Sentinel to know the replica")
        yield client
    finally:
        await client.aclose()
        await asyncio.to_thread(process.stop)


async def is_written(
    url: str, cluster: str, fail_over: Callable[[], Awaitable[None]], to: Redis
) -> None:
    """Let the guard write, fail over, and check that the guard writes to the new primary."""
    world = await GuardedWorld.make()
    writer = writer_of(world, url, cluster)
    task = asyncio.create_task(writer.run())
    try:
        await until(lambda: shows(to, cluster), "the first write")
        await fail_over()
        await to.flushall()  # the replicated state
        await until(lambda: shows(to, cluster), "a write to the new primary")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.close()
        await world.proofs.close()


async def shows(server: Redis, cluster: str) -> bool:
    """Return whether a guard updates this server, or did within the time to live."""
    with contextlib.suppress(Exception):
        return (await read_guard(server, cluster)).age_s < TTL_S
    return False


async def test_guard_leaves_a_demoted_server(pair: tuple[Redis, Redis], cluster: str) -> None:
    """The old primary stays up and keeps its connections, as with a managed Redis in maintenance."""
    first, second = pair
    target = [port_of(first)]

    async def fail_over() -> None:
        await second.replicaof("NO", "ONE")
        await first.replicaof(LOOPBACK, port_of(second))
        target.append(port_of(second))

    async with moving_name(target) as port:
        await is_written(f"redis://{LOOPBACK}:{port}/0", cluster, fail_over, second)


async def test_guard_follows_sentinels_to_the_new_primary(
    pair: tuple[Redis, Redis], cluster: str, tmp_path: Path
) -> None:
    first, second = pair
    nobody = free_port()
    async with sentinel_of(first, tmp_path) as sentinel:

        async def fail_over() -> None:
            await first.shutdown(nosave=True)
            await until(lambda: is_primary(second), "the second server to be the primary")

        port = port_of(sentinel)
        url = f"redis+sentinel://{LOOPBACK}:{nobody},{LOOPBACK}:{port}/guarded"
        await is_written(url, cluster, fail_over, second)


def test_sentinel_url_has_servers_credentials_and_a_database() -> None:
    assert parse_sentinel_url("redis+sentinel://a:1,[::1]:2,c/svc") == SentinelUrl(
        (("a", 1), ("::1", 2), ("c", 26379)), "svc", 0, None, None, tls=False
    )
    assert parse_sentinel_url("rediss+sentinel://u:p%40w@a:1/svc/3") == SentinelUrl(
        (("a", 1),), "svc", 3, "u", "p@w", tls=True
    )


@pytest.mark.parametrize(
    ("url", "is_cluster"),
    [
        ("redis+sentinel://:secret@a:1", False),
        ("redis+sentinel://a:1,/svc", False),
        ("redis+sentinel://a:port/svc", False),
        ("redis+sentinel://a:1/svc/db", False),
        ("redis+sentinel://a:1/svc", True),
        ("kafka://:secret@a:1", False),
    ],
)
async def test_malformed_url_is_refused_without_its_password(url: str, is_cluster: bool) -> None:
    settings = SessionGuardSettings(redis_url=url, redis_cluster=is_cluster)
    with pytest.raises(ConfigurationError, match="STELE_REDIS_URL: ") as refused:
        connect_redis(settings, 1.0)
    assert "secret" not in str(refused.value)
