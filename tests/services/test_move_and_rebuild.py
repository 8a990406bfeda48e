"""Node processes move to other tokens under load, and rebuild rows that were deleted from their store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from stele.domain.ring.partitioner import token_of
from tests.deployment.load import running
from tests.deployment.processes import Deployment, nodes_of

pytestmark = pytest.mark.broker

REST_S = 90
NAMES = ("n1", "n2", "n3", "n4")


@pytest.fixture
async def four(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with nodes_of(kafka, topics, tmp_path, *NAMES) as cluster:
        yield cluster


def tokens_of(cluster: Deployment, node_id: str) -> tuple[int, ...]:
    return cluster.image.membership.nodes[node_id].tokens


def stored(cluster: Deployment, node_id: str) -> dict[str, bytes]:
    """Return the number of rows on the disk of a node."""
    with closing(sqlite3.connect(cluster.folder / node_id / "store.sqlite")) as store:
        rows = store.execute("select key, value from cells where tombstone = 0").fetchall()
    return {key.decode(): value for key, value in rows}


def replicas(cluster: Deployment, key: str) -> tuple[str, ...]:
    placement = cluster.image.placement_of("library")
    assert placement is not None
    return placement.row_for(token_of(key.encode())).reads


async def test_nodes_move_tokens_under_load_without_loss(four: Deployment) -> None:
    async with running(four.load(NAMES)) as clients:
        await clients.go_on(100)
        kept, *_ = tokens_of(four, "n3")
        given = [kept, -(2**61), 5, 2**61]
        await four.done(type="move", node_id="n3", tokens=given)
        assert tokens_of(four, "n3") == tuple(sorted(given))
        await clients.go_on(50)
        await four.done(type="move", node_id="n3")
        assert not {*given} & {*tokens_of(four, "n3")} - {kept}
        await four.done(type="move", node_id="n1", tokens=[77])
        await clients.go_on(50)
    await clients.is_read(NAMES)
    for node_id in NAMES:
        rows = stored(four, node_id)
        mine = {key for key in clients.acknowledged if node_id in replicas(four, key)}
        assert mine - {*rows} == set(), f"{node_id} lacks some"
        strange = {key for key in rows if node_id not in replicas(four, key)}
        assert not strange, f"{node_id} has cleaned up"


async def test_rebuild_restores_rows_deleted_from_the_store(four: Deployment) -> None:
    async with running(four.load(NAMES)) as clients:
        await clients.go_on(200)
    n2 = four.nodes["n2"]
    await n2.stop()
    with closing(sqlite3.connect(four.folder / "n2" / "store.sqlite")) as store, store:
        assert store.execute("delete from cells").rowcount > 50
    await n2.start()
    await n2.until("/healthz", lambda health: health["ok"], "n2 to serve")
    mine = {k: v for k, v in clients.acknowledged.items() if "n2" in replicas(four, k)}
    assert not mine.keys() & stored(four, "n2").keys()
    async with running(four.load(NAMES)) as others:
        await four.done(type="rebuild", node_id="n2")
    found = stored(four, "n2")
    assert {key for key in mine if found.get(key) != mine[key]} == set()
    await others.is_read(NAMES)
