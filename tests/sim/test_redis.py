"""The session guard's scripts have the same effect in the simulated Redis as in a real one."""

from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from stele.session_guard.check import _READ, guard_key, nodes_key, session_field
from stele.session_guard.redis_writer import VACANCY_MS, WRITE, ScriptAnswer, parse_answer
from stele_simulator.kernel import Kernel, us
from stele_simulator.processes.redis import Server
from stele_simulator.processes.world import World

TTL_MS = 60_000
STEPS = 300
LOGS = ("0" * 31 + "1", "0" * 31 + "2")


class Simulated:
    """A simulated server, a while after its start."""

    def __init__(self) -> None:
        self._kernel = kernel = Kernel("redis")
        kernel.run_until(us(100.0))
        self.server = Server(cast(World, SimpleNamespace(kernel=kernel, trace=lambda _: None)))
        self.vacancy = ""

    async def eval(self, script: str, count: int, *words: Any) -> Any:
        self._kernel.run_until(self._kernel.now_us + us(0.001))
        given = [str(word) for word in words]
        return self.server.run(script, given[:count], given[count:])

    async def flush(self) -> None:
        self.server.flush()


class Real:
    """A key in a real server."""

    def __init__(self, redis: Redis, cluster: str) -> None:
        self._redis = redis
        self._cluster = cluster
        self.vacancy = ""

    async def eval(self, script: str, count: int, *words: Any) -> Any:
        return await self._redis.eval(script, count, *words)

    async def flush(self) -> None:
        await self._redis.delete(guard_key(self._cluster), nodes_key(self._cluster))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


async def write(there: Simulated | Real, cluster: str, chosen: dict[str, Any]) -> ScriptAnswer:
    """Run one write. Its proof is older than Redis's time by the chosen difference."""
    keys = guard_key(cluster), nodes_key(cluster)
    now_ms, _, _ = await there.eval(_READ, 1, keys[0], session_field("s1"))
    vacancy = there.vacancy if chosen["names_vacancy"] else ""
    fields = ["version", chosen["epoch"] + 3, "fence_version", chosen["epoch"], *chosen["session"]]
    args = (chosen["log_id"], chosen["epoch"], now_ms + chosen["proof_ms"], TTL_MS, vacancy, "me")
    answer = await there.eval(WRITE, 2, *keys, *args, VACANCY_MS, len(fields), *fields, "n1", b"{}")
    found = parse_answer(answer)
    there.vacancy = found.vacancy
    return found


def choices(seed: int) -> list[dict[str, Any]]:
    random = Random(seed)
    return [
        {
            "flush": random.random() < 0.1,
            "log_id": random.choice(LOGS),
            "epoch": random.randrange(8, 13),
            "proof_ms": random.choice((-30_000, -20_000, -10_000, -90_000, 90_000)),
            "names_vacancy": random.random() < 0.8,
            "session": (session_field("s1"), 1) if random.random() < 0.5 else (),
        }
        for _ in range(STEPS)
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_scripts_give_equal_answers_and_states(redis: Redis, seed: int) -> None:
    cluster = f"contract-{seed}"
    both: tuple[Simulated | Real, ...] = Simulated(), Real(redis, cluster)
    results = set[str]()
    for chosen in choices(seed):
        answers, shown = [], []
        for there in both:
            if chosen["flush"]:
                await there.flush()
            found = await write(there, cluster, chosen)
            answers.append((found.result, found.log_id, found.epoch, bool(found.vacancy)))
            _, left_ms, values = await there.eval(_READ, 1, guard_key(cluster), session_field("s1"))
            shown.append(([*values[:4], *values[5:]], left_ms > 0))
        assert answers[0] == answers[1], chosen
        assert shown[0] == shown[1], chosen
        results.add(answers[0][0])
    assert results >= {"written", "vacant", "overtaken", "proved_already", "too_late"}


def test_replica_that_takes_over_lacks_the_last_writes() -> None:
    there = Simulated()
    server = there.server
    write_field = "redis.call('HSET', KEYS[1], 'a', ARGV[1])"
    server.run(write_field, ["k"], ["old"])
    kernel = server._world.kernel
    kernel.run_until(kernel.now_us + us(10.0))
    server.run(write_field, ["k"], ["new"])
    server.fail_over()
    assert server.run("return redis.call('HMGET', KEYS[1], 'a')", ["k"], []) == [b"old"]
