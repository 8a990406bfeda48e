"""Catch-up replicas are probed for a heartbeat, each with a short time limit."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from stele.coordinator import probes
from stele.coordinator.probes import ReplicaProbes
from stele.domain.model.archive import Replica
from stele.domain.names import ReplicaState
from stele.domain.observed_time import ObservedTime
from stele.runtime.answers.common import Position
from tests.polling import until

UNREACHABLE = "http://127.0.0.1:9"


def replica(name: str, address: str) -> Replica:
    return Replica(
        replica_id=name,
        dc="dc1",
        rack="r1",
        address=address,
        state=ReplicaState.MEMBER,
        since_epoch=1,
    )


def position(instance: str) -> bytes:
    return msgspec.json.encode(Position("catch-up", instance, 7, "", "", ""))


@asynccontextmanager
async def serving(answer: Callable[[], web.Response]) -> AsyncIterator[str]:
    async def get(_: web.Request) -> web.Response:
        return answer()

    app = web.Application()
    app.router.add_get("/v1/position", get)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@asynccontextmanager
async def asking(*known: Replica) -> AsyncIterator[ReplicaProbes]:
    asked = ReplicaProbes(lambda: [*known])
    task = asyncio.ensure_future(asked.run())
    try:
        yield asked
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ASK_S", 0.05)
    monkeypatch.setattr(probes, "ANSWER_S", 0.5)


async def test_replica_that_answers_is_alive_with_its_epoch() -> None:
    async with (
        serving(lambda: web.Response(body=position("c-1"))) as url,
        asking(replica("c-1", url), replica("c-2", UNREACHABLE)) as asked,
    ):
        await until(
            lambda: asked.liveness["c-1"].answered_s if asked.liveness else None, "c-1 heard"
        )
        assert asked.liveness["c-1"].epoch == 7
        assert asked.liveness["c-2"].answered_s is None
        assert asked.liveness["c-2"].since_s <= (asked.liveness["c-1"].answered_s or 0)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(body=position("another")),
        lambda: web.Response(body=b"{}"),
        lambda: web.Response(body=b"no json"),
        lambda: web.Response(status=500, body=position("c-1")),
        lambda: web.Response(body=b"[" * 10_000_000),
    ],
    ids=["another replica", "another shape", "no json", "a failure", "too much"],
)
async def test_other_answers_are_no_sign_of_life(answer: Callable[[], web.Response]) -> None:
    count = 0

    def counted() -> web.Response:
        nonlocal count
        count += 1
        return answer()

    async with serving(counted) as url, asking(replica("c-1", url)) as asked:
        await until(lambda: count >= 2, "asked again")
        assert asked.liveness["c-1"].answered_s is None


async def test_silence_counts_from_the_first_probe_and_the_last_answer() -> None:
    up = True

    def answer() -> web.Response:
        return web.Response(body=position("c-1")) if up else web.Response(status=503)

    async with serving(answer) as url, asking(replica("c-1", url)) as asked:
        await until(lambda: asked.liveness and asked.liveness["c-1"].answered_s, "heard")
        first_s = asked.liveness["c-1"].since_s
        up = False
        await asyncio.sleep(0.3)
        last_s = asked.liveness["c-1"].answered_s
        await asyncio.sleep(0.2)
        assert asked.liveness["c-1"].since_s == first_s
        assert asked.liveness["c-1"].answered_s == last_s


async def test_silence_counts_from_zero_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(replica("c-1", UNREACHABLE)) as asked:
        await until(lambda: asked.liveness, "asked")
        before_s = asked.liveness["c-1"].since_s
        monkeypatch.setattr(asked, "_asking", ObservedTime(0.0))
        await until(lambda: asked.liveness["c-1"].since_s > before_s, "the time to restart")


async def test_no_probe_is_sent_without_replicas() -> None:
    async with asking() as asked:
        await asyncio.sleep(0.15)
        assert asked.liveness == {}
