"""Look-ups of the router, tries after stale answers, and quorums, on a log in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from stele.domain.image import Image
from stele.domain.ring.partitioner import token_of
from stele.domain.routed import TABLE_VERSION
from stele.router import (
    NotReady,
    Place,
    Replicas,
    Router,
    RouterStopped,
    StaleRoute,
    StaleTooLong,
    Unavailable,
    UnknownName,
    read_quorum,
    write_quorum,
)
from stele.router.router import kept_current
from tests.node.columned import USERS, create_tables, schema_of
from tests.node.world import KEYSPACE, World

WITHOUT = [
    "confluent_kafka",
    "fastavro",
    "faust",
    "prometheus_client",
    "pyspark",
    "redis",
    "rich",
    "sse_starlette",
    "stamina",
    "starlette",
    "structlog",
    "uvicorn",
]
"""Packages that a client does not need."""


def router_at(image: Image) -> Router:
    router = Router()
    router.take(image)
    return router


def test_request_headers_have_the_table_version() -> None:
    world = World()
    create_tables(world)
    router = router_at(world.image)
    for name, version in ((USERS, schema_of(world.image).version), (KEYSPACE, None)):
        replicas = router.lookup(name, b"key")
        headers = replicas.headers(replicas.place(replicas.reads[0]))
        assert headers.get(TABLE_VERSION) == (str(version) if version else None)


async def test_lookup_equals_the_placement_row_throughout_a_join() -> None:
    world = World()
    router = router_at(world.image)
    world.start_join()
    seen = set[tuple[int, bool]]()
    while world.image.topology.transitions:
        router.take(world.image)
        key = world.key(lambda row: row.other) if _moves(world) else b"key"
        found, row = router.lookup(KEYSPACE, key), world.row(key)
        assert (found.reads, found.writes, found.token) == (row.reads, row.writes, token_of(key))
        assert (found.version, found.epoch) == (world.version, world.image.epoch)
        assert found.data_id == world.data_id and found.log_id == world.image.log_id.hex()
        assert found.place("n1").address == "http://n1"
        seen.add((found.version, bool(row.other)))
        world.advance()
    assert {moves for _, moves in seen} == {True, False}


async def test_repr_of_replicas_is_one_line_without_the_image() -> None:
    world = World()
    found = router_at(world.image).lookup(KEYSPACE, b"book.txt")
    shown = f"Replicas(name={KEYSPACE!r}, key=b'book.txt', reads={found.reads!r}, writes={found.writes!r},"
    assert repr(found) == f"{shown} version={world.version}, epoch={world.image.epoch})"


def _moves(world: World) -> bool:
    placement = world.image.placement_of(KEYSPACE)
    assert placement is not None
    return any(row.other for row in placement.rows)


async def test_write_counts_once_a_quorum_of_both_replica_sets_has_it() -> None:
    world = World()
    world.start_join()
    world.advance()
    found = router_at(world.image).lookup(KEYSPACE, world.key(lambda row: row.other))
    assert len(found.writes) == 4
    old, new = set(found.reads), set(found.row.other)
    (lost,) = old - new
    assert not found.written({lost, *sorted(old & new)[:1]})
    assert found.written({lost, *sorted(old & new)})
    assert found.read(set(sorted(old)[:2])) and not found.read({lost})


async def test_unknown_name_raises_an_error_with_the_epoch() -> None:
    world = World()
    with pytest.raises(NotReady, match="wait_ready"):
        Router().lookup(KEYSPACE, b"k")
    router = router_at(world.image)
    with pytest.raises(UnknownName, match="no keyspace 'libary' at epoch"):
        router.lookup("libary", b"k")
    assert router.lookup(KEYSPACE, b"k").reads
    world.drop()
    router.take(world.image)
    with pytest.raises(UnknownName):
        router.lookup(KEYSPACE, b"k")


async def test_stale_answer_is_retried_with_the_newer_state() -> None:
    world = World()
    router = router_at(world.image)
    first = world.image.epoch
    world.start_join()
    newest = world.image
    asyncio.get_running_loop().call_later(0.02, router.take, newest)
    epochs = list[int]()
    async for attempt in router.attempts(KEYSPACE, b"k"):
        with attempt as replicas:
            epochs.append(replicas.epoch)
            if replicas.epoch < newest.epoch:
                raise StaleRoute(newest.epoch)
    assert epochs == [first, newest.epoch]


async def test_stale_route_times_out_and_other_errors_propagate() -> None:
    router = router_at(World().image)
    tries = 0
    with pytest.raises(StaleTooLong, match="no newer state arrived in time"):
        async for attempt in router.attempts(KEYSPACE, b"k", timeout_s=0.1):
            with attempt:
                tries += 1
                raise StaleRoute()
    assert 2 <= tries <= 7
    with pytest.raises(StaleTooLong):
        async for attempt in router.attempts(KEYSPACE, b"k", timeout_s=0.05):
            with attempt:
                raise StaleRoute(10**6)
    with pytest.raises(ZeroDivisionError):
        async for attempt in router.attempts(KEYSPACE, b"k"):
            with attempt:
                raise ZeroDivisionError


async def test_router_whose_source_ended_raises_with_the_reason() -> None:
    router, ends = router_at(World().image), asyncio.Event()

    async def source() -> None:
        await ends.wait()
        raise ZeroDivisionError

    async with kept_current(router, source(), 1):
        ends.set()
        with pytest.raises(RouterStopped, match="reads no more: ZeroDivisionError"):
            await router.wait_for_epoch(10**6, 1)
        assert "reads no more: ZeroDivisionError" in router.trouble
        assert router.lookup(KEYSPACE, b"k").reads


Send = Callable[[Place], Awaitable[str]]


def send_to(**ends: object) -> tuple[Send, list[str]]:
    """Return a function that sends to replicas, and the list of those that succeeded. Replicas in ``ends`` fail
    with the error, or never answer (None).
    """
    done = list[str]()

    async def send(place: Place) -> str:
        end = ends.get(place.node_id, "")
        if isinstance(end, Exception):
            raise end
        await (asyncio.Event().wait() if end is None else asyncio.sleep(0.001))
        done.append(place.node_id)
        return place.address

    return send, done


async def test_write_returns_at_a_quorum_and_still_reaches_the_others() -> None:
    replicas = router_at(World().image).lookup(KEYSPACE, b"k")
    send, done = send_to(n3=OSError("down"))
    assert await write_quorum(replicas, send) == {n: f"http://{n}" for n in ("n1", "n2")}
    assert sorted(done) == ["n1", "n2"]

    late = asyncio.Event()

    async def slow(place: Place) -> None:
        if place.node_id == "n3":
            await late.wait()
        done.append(f"late {place.node_id}")

    await write_quorum(replicas, slow)
    late.set()
    await asyncio.sleep(0.01)
    assert "late n3" in done


async def test_too_few_answers_raise_with_the_failures_or_a_stale_route() -> None:
    replicas = router_at(World().image).lookup(KEYSPACE, b"k")
    send, _ = send_to(n2=OSError("down"), n3=None)
    with pytest.raises(Unavailable, match=r"n2: down; n3: .*did not answer within") as caught:
        await read_quorum(replicas, send, timeout_s=0.05)
    assert caught.value.answered == {"n1"} and set(caught.value.refused) == {"n2", "n3"}
    send, _ = send_to(n2=StaleRoute(9), n3=None)
    with pytest.raises(StaleRoute) as stale:
        await write_quorum(replicas, send, timeout_s=5)
    assert stale.value.epoch == 9


async def test_quorum_counts_despite_one_stale_answer() -> None:
    replicas = router_at(World().image).lookup(KEYSPACE, b"k")
    ready = asyncio.Event()

    async def send(place: Place) -> None:
        if place.node_id == "n3":
            await ready.wait()
            raise StaleRoute
        if place.node_id == "n2":
            await ready.wait()
        ready.set()

    assert len(await read_quorum(replicas, send)) == 2


@pytest.mark.parametrize("quorum", (read_quorum, write_quorum))
async def test_cancelled_call_to_one_replica_does_not_fail_the_quorum(
    quorum: Callable[[Replicas, Send], Awaitable[dict[str, str]]],
) -> None:
    replicas = router_at(World().image).lookup(KEYSPACE, b"k")
    connection = asyncio.get_running_loop().create_future()
    plain, _ = send_to()

    async def send(place: Place) -> str:
        if place.node_id in ill:
            await connection
        return await plain(place)

    asyncio.get_running_loop().call_soon(connection.cancel)
    ill = {"n1"}
    assert {*await quorum(replicas, send)} == {"n2", "n3"}
    ill = {"n1", "n2"}
    with pytest.raises(Unavailable, match="n1: the call was cancelled; n2: the call was cancelled"):
        await quorum(replicas, send)


async def test_cancelled_caller_does_not_wait_for_a_quorum() -> None:
    replicas = router_at(World().image).lookup(KEYSPACE, b"k")
    send, _ = send_to(n1=None, n2=None, n3=None)
    caller = asyncio.create_task(read_quorum(replicas, send))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


def test_router_is_importable_without_spark_kafka_and_servers() -> None:
    program = f"""
import sys
for name in {WITHOUT!r}:
    sys.modules[name] = None  # importing it raises ImportError
import stele.router
stele.router.Router.lookup, stele.router.http_router
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
