"""Ends of joins, and reports to their nodes, with real processes that are killed at bad times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.names import NodeState, RequestStatus
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from tests.deployment.load import running
from tests.deployment.process import Service
from tests.deployment.processes import (
    HTTP_OK,
    Deployment,
    following,
    nodes_of,
)
from tests.polling import until

pytestmark = pytest.mark.broker

NO_REDIS = "redis://127.0.0.1:1/0"
FOUNDERS = 3
NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
async def empty(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Return a deployment without processes."""
    async with following(kafka, topics, NO_REDIS, tmp_path) as cluster:
        yield cluster


async def start_and_let_end(cluster: Deployment, node_id: str, /, **settings: object) -> str:
    """Return the output of a process that fails to start, or ends soon after."""
    if node_id in cluster.nodes:
        service = cluster.nodes[node_id]
        with contextlib.suppress(AssertionError):  # it may end before it says where it listens
            await service.restart(**{f"STELE_{k}".upper(): str(v) for k, v in settings.items()})
    else:
        service = await cluster.start_node(node_id, **settings)
    return await end_of(service)


async def end_of(service: Service) -> str:
    await until(lambda: service.process.poll() is not None, "its end")
    assert service.process.poll() == EXIT_BAD_CONFIGURATION, service.process.tail()
    return service.process.tail()


async def known(cluster: Deployment, node_id: str, state: NodeState = NodeState.NONE) -> None:
    await until(lambda: cluster.node_state(node_id) == state, f"{node_id} to be {state}", 60)


async def test_joining_node_that_crashes_while_streaming_resumes(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    async with nodes_of(kafka, topics, tmp_path, "n1", "n2", "n3") as cluster:
        async with running(cluster.load()) as clients:
            await clients.go_on(100)
            node = await cluster.start_node("n4")
            await known(cluster, "n4", NodeState.BOOTSTRAPPING)
            os.kill(cluster.coordinator.process.pid, signal.SIGSTOP)
            node.kill()
            await node.start()
            os.kill(cluster.coordinator.process.pid, signal.SIGCONT)
            await cluster.normal("n4")
            await clients.go_on(20)
        await clients.is_read(["n2", "n3", "n4"])
        assert json.loads((tmp_path / "n4" / "node.json").read_text())["was_member"]

        for place in ({"rack": "r9"}, {"dc": "dc9"}):
            said = await start_and_let_end(cluster, "n4", **place)
            assert "is in dc1/r4" in said and "STELE_RACK=r4" in said
        await node.restart(STELE_DC="dc1", STELE_RACK="r4", STELE_NUM_TOKENS="99")
        await node.until("/healthz", lambda h: h["ok"], "n4 to be well")
        assert "STELE_NUM_TOKENS counts when a node joins" in node.process.tail()
        await until(lambda: cluster.node_address("n4") == node.url, "the new address")
        row = cluster.image.node("n4")
        assert row is not None and row.num_tokens == len(row.tokens) == 4


async def test_concurrent_starts_on_an_empty_topic_form_one_cluster(empty: Deployment) -> None:
    """Several founders and nodes start, and some are killed. The first record founds the cluster."""
    founders = [f"metadata-log-{number}" for number in range(FOUNDERS)]
    starting = await asyncio.gather(
        *(empty.start("metadata_log", name) for name in founders),
        *(empty.start_node(node_id) for node_id in NODES),
        empty.start("coordinator", resend_s=0.5),
    )
    killed = [starting[0], starting[1], starting[FOUNDERS]]
    for service in killed:
        service.kill()
    await asyncio.gather(*(service.start() for service in killed))
    logs = starting[:FOUNDERS]
    for log in logs:
        await log.until("/healthz", lambda h: h["ok"], "a founder to be well", 60)
    empty.log_url = logs[0].url
    await empty.serve_keyspace(*NODES)
    states = [await log.get("/v1/state?level=barrier") for log in logs]
    assert len({(state["cluster_id"], state["log_id"]) for state in states}) == 1
    epochs = await logs[0].get("/v1/epochs?from=1&limit=1000")
    made = [f for row in epochs for f in row["facts"] if f["type"] == "ClusterCreated"]
    assert len(made) == 1
    hosts = {json.loads((empty.folder / n / "node.json").read_text())["host_id"] for n in NODES}
    assert {node.host_id for node in empty.image.membership.nodes.values()} == hosts
    assert {r.status for r in empty.image.requests.requests.values()} == {RequestStatus.DONE}
    for node_id in NODES:
        assert (await empty.put(node_id, f"k-{node_id}", b"v"))[0] == HTTP_OK
