"""A member with a full disk serves reads and can leave. A restart needs space on its disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.agent.judging import Code
from stele.domain.names import NodeState
from stele.domain.ring.partitioner import token_of
from stele.node.cells import Cell
from stele.node.wire import Write
from tests.deployment.load import running
from tests.deployment.processes import Deployment, nodes_of
from tests.disk import Disk

pytestmark = pytest.mark.broker

VALUE_BYTES = 256 * 1024
"""Larger than the pages that SQLite has reserved."""


@pytest.fixture
async def four(kafka: str, topics: str, tmp_path: Path, disk: Disk) -> AsyncIterator[Deployment]:
    """Start nodes n1 to n4. The data directory of n4 is on ``disk``."""
    async with nodes_of(kafka, topics, tmp_path, "n1", "n2", "n3") as cluster:
        await cluster.start_node("n4", data_dir=disk.path / "n4")
        await cluster.normal("n4")
        yield cluster


async def write(cluster: Deployment, node_id: str, key: str) -> Code:
    """Return the answer of a replica to a write that needs space."""
    image = cluster.image
    [answer] = await cluster.replica(
        node_id,
        Write(
            version=image.topology.version,
            epoch=image.epoch,
            coordinating="n1",
            data_id=cluster.keyspace_id(),
            token=token_of(key.encode()),
            key=key.encode(),
            cell=Cell(1, False, bytes(VALUE_BYTES)),
        ),
    )
    return answer.code


def a_key_of(cluster: Deployment, node_id: str) -> str:
    placement = cluster.image.placement_of("library")
    assert placement is not None
    return next(
        key
        for key in map("key{}".format, range(1000))
        if node_id in placement.row_for(token_of(key.encode())).writes
    )


async def test_member_with_a_full_disk_leaves_without_loss(four: Deployment, disk: Disk) -> None:
    """The node acknowledges each version of the leave, and streams its rows."""
    key = a_key_of(four, "n4")
    async with running(four.load()) as clients:
        await clients.go_on(100)
        disk.fill(0)
        assert await write(four, "n4", key) is Code.DISK_FULL
        await clients.go_on(100)
        await four.done(type="leave", node_id="n4")
        assert four.node_state("n4") == NodeState.LEFT
        await clients.go_on(100)
    await clients.is_read(["n1", "n2", "n3"])


async def test_member_starts_and_accepts_writes_once_its_disk_has_space(
    four: Deployment, disk: Disk
) -> None:
    n4, key = four.nodes["n4"], a_key_of(four, "n4")
    disk.fill(0)
    assert await write(four, "n4", key) is Code.DISK_FULL
    n4.kill()
    with pytest.raises(AssertionError, match="database or disk is full"):
        await n4.start()
    disk.empty()
    await n4.start()
    await n4.until("/healthz", lambda health: health["ok"], "n4 to be well")
    assert await write(four, "n4", key) is Code.OK
