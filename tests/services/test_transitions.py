"""Node processes join, leave and are killed while clients write and read at quorum: nothing is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.names import RequestStatus, TransitionState
from stele.domain.topology.facts import Transition
from tests.services.nodes import HTTP_OK, Cluster, cluster_of, load, state_of
from tests.services.world import settle, until

pytestmark = pytest.mark.broker

LARGE_BYTES = 256 * 1024
LARGE_VALUES = 80
"""20 MiB: streaming them takes long enough to be killed in the middle of it."""


@pytest.fixture
async def four(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    names = ("n1", "n2", "n3", "n4")
    patience = {"barrier_patience_s": 3, "dead_node_patience_s": 60}
    async with cluster_of(kafka, topics, tmp_path, *names, **patience) as cluster:
        yield cluster


async def fill(cluster: Cluster) -> None:
    keys = iter(range(LARGE_VALUES))

    async def writer() -> None:
        for number in keys:
            status, _ = await cluster.put("n1", f"large/{number}", os.urandom(LARGE_BYTES))
            assert status == HTTP_OK

    await asyncio.gather(*(writer() for _ in range(4)))


def transition_of(cluster: Cluster, *nodes: str) -> Transition | None:
    """The open transition of exactly these nodes."""
    opened = cluster.image.topology.open()
    return next((t for t in opened if {*t.nodes()} == {*nodes}), None)


def streams(cluster: Cluster, *nodes: str) -> bool:
    found = transition_of(cluster, *nodes)
    return (
        found is not None
        and found.state is TransitionState.WRITE_BOTH_READ_OLD
        and cluster.image.topology.fence_version >= found.entered_version
    )


def pending(cluster: Cluster) -> int:
    return len(cluster.image.requests.pending())


async def test_nodes_join_and_leave_together_under_load_through_a_kill(four: Cluster) -> None:
    await fill(four)
    async with load(four) as clients:
        await clients.go_on(50)
        four.coordinator.kill()  # so that both requests wait when the next one looks
        await asyncio.gather(four.start_node("n5"), four.start_node("n6"))
        await until(lambda: pending(four) == 2, "both requests to join")
        await four.coordinator.start()
        await until(lambda: streams(four, "n5", "n6"), "one transition of both that streams", 60)
        four.nodes["n5"].kill()
        shown = await four.coordinator.get("/v1/progress")
        report = shown["transitions"][0]["nodes"].get("n5", {"status": "running"})
        assert report["status"] == "running"
        await four.nodes["n5"].start()
        await until(lambda: settle(four.image), "both joins to be done", 60)
        assert {state_of(four, n) for n in ("n5", "n6")} == {"normal"}

        clients.via = ["n2", "n3", "n5", "n6"]
        await four.command(type="leave", node_id="n1")
        await four.start_node("n7")
        await until(lambda: state_of(four, "n7") == "normal", "n7 to join", 60)
        await until(lambda: settle(four.image), "the leave to be done", 60)
        assert state_of(four, "n1") == "left"
        await clients.go_on(50)
    requests = four.image.requests.requests.values()
    assert {request.status for request in requests} == {RequestStatus.DONE}
    assert clients.reads > clients.count / 2
    await clients.is_read(["n3", "n7"])
