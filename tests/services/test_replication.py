"""Replication changes under load with real processes: no acknowledged write is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.names import RequestStatus
from tests.deployment.load import running
from tests.deployment.processes import HTTP_OK, KEYSPACE, Deployment, nodes_of
from tests.services.world import settle, until

pytestmark = pytest.mark.broker

NODES = ("n1", "n2", "n3")
REST_S = 90


@pytest.fixture
async def three(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with nodes_of(kafka, topics, tmp_path, *NODES, barrier_patience_s=3) as cluster:
        yield cluster


async def alter(cluster: Deployment, rf: int) -> None:
    await cluster.done(type="keyspace_rf_change", name=KEYSPACE, replication={"dc1": rf})
    keyspace = cluster.image.schema.named(KEYSPACE)
    assert keyspace is not None
    assert (keyspace.replication, keyspace.placement) == ({"dc1": rf}, f"dc1:{rf}")
    assert {*cluster.image.ring.placements} == {f"dc1:{rf}"}


async def keys_of(cluster: Deployment) -> list[int]:
    return [await cluster.keys(node_id) for node_id in NODES]


async def test_replication_shrinks_to_one_and_back_under_load_without_loss(
    three: Deployment,
) -> None:
    async with running(three.load()) as clients:
        await clients.go_on(200)
        await alter(three, 1)
        await clients.go_on(100)
    await clients.is_read(NODES)
    alone = await keys_of(three)
    assert min(alone) > 0
    assert sum(alone) >= len(clients.acknowledged)

    async with running(three.load()) as more:
        await more.go_on(100)
        await alter(three, 3)
        await more.go_on(100)
    keys = await keys_of(three)
    assert min(keys) >= len({*clients.acknowledged} | {*more.acknowledged})
    three.nodes["n3"].kill()
    await more.is_read(["n1", "n2"])


async def test_remaining_replica_gets_writes_that_it_missed(three: Deployment) -> None:
    """Otherwise the only replica would lack writes that the two others acknowledged."""
    n3 = three.nodes["n3"].process.pid
    os.kill(n3, signal.SIGSTOP)
    written = [f"k{number}" for number in range(60)]
    for key in written:
        assert (await three.put("n1", key, key.encode()))[0] == HTTP_OK
    os.kill(n3, signal.SIGCONT)
    await alter(three, 1)
    assert sum(await keys_of(three)) == len(written), "each is where it belongs, and nowhere else"
    for key in written:
        assert await three.get("n3", key) == (HTTP_OK, key.encode())


async def test_cancelled_replication_change_is_rolled_back_under_load(three: Deployment) -> None:
    """A receiving node does not answer, so the change is cancelled while it streams."""
    await alter(three, 1)
    async with running(three.load()) as clients:
        await clients.go_on(100)
        n3 = three.nodes["n3"].process.pid
        os.kill(n3, signal.SIGSTOP)
        command = {"type": "keyspace_rf_change", "name": KEYSPACE, "replication": {"dc1": 3}}
        asked = await three.command(**command)
        request_id = asked["request_id"]

        def is_over() -> bool:
            request = three.image.request(request_id)
            return request is not None and request.finished_epoch > 0 and settle(three.image)

        def is_open() -> bool:
            return three.image.topology.of_request(request_id) is not None

        await until(is_open, "the change to begin", REST_S)
        await three.command(type="cancel", target=request_id)
        os.kill(n3, signal.SIGCONT)
        await until(is_over, "the cancel", REST_S)
        await clients.go_on(50)
    keyspace = three.image.schema.named(KEYSPACE)
    assert keyspace is not None and keyspace.placement == "dc1:1"
    request = three.image.request(request_id)
    assert request is not None and request.status == RequestStatus.CANCELLED
    await clients.is_read(NODES)
