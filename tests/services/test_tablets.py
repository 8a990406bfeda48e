"""Tablets on real processes: they move during reads and writes, fill new nodes and leave old ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stele.domain.names import NodeState, RequestStatus
from stele.domain.ring.partitioner import token_of
from tests.deployment.processes import HTTP_OK, Deployment, nodes_of
from tests.services.world import until

pytestmark = pytest.mark.broker

REST_S = 90
TABLE = "music.songs"
KEYS = [f"song-{number}" for number in range(60)]


@pytest.fixture
async def three(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Start three nodes, with a table of eight tablets with two replicas, in which every key is written."""
    names = ("n1", "n2", "n3")
    async with nodes_of(kafka, topics, tmp_path, *names, barrier_patience_s=2) as cluster:
        await cluster.command(
            type="create_keyspace",
            name="music",
            replication={"dc1": 2},
            tablets=True,
            initial_tablets=8,
        )
        await cluster.command(type="create_table", name=TABLE)
        for key in KEYS:
            await put(cluster, "n1", key)
        yield cluster


def held(cluster: Deployment) -> Counter[str]:
    return Counter(node for row in cluster.rows(TABLE) for node in row.writes)


async def put(cluster: Deployment, via: str, key: str) -> None:
    url = f"{cluster.nodes[via].url}/v1/data/{TABLE}/{key}"
    async with cluster.http.put(url, data=key.encode()) as answer:
        assert answer.status == HTTP_OK, await answer.text()


@asynccontextmanager
async def written(cluster: Deployment, *via: str) -> AsyncIterator[None]:
    """Write keys repeatedly inside the block. Each write must be acknowledged."""
    stop, writes = asyncio.Event(), 0

    async def keep_on() -> None:
        nonlocal writes
        while not stop.is_set():
            for key in KEYS[:10]:
                await put(cluster, via[writes % len(via)], key)
                writes += 1
            await asyncio.sleep(0.02)

    clients = asyncio.create_task(keep_on())
    yield
    stop.set()
    await clients
    assert writes > 100


async def check_all_keys_are_read(cluster: Deployment, *via: str) -> None:
    for number, key in enumerate(KEYS):
        url = f"{cluster.nodes[via[number % len(via)]].url}/v1/data/{TABLE}/{key}"
        async with cluster.http.get(url) as answer:
            assert (answer.status, await answer.read()) == (HTTP_OK, key.encode())


async def stores(cluster: Deployment, node_id: str, keys: int) -> None:
    """Wait until a node reports this number of rows of the table. It counts them at intervals."""
    data = cluster.image.schema.serving(TABLE)
    assert data is not None

    def is_so(view: dict[str, Any]) -> bool:
        found = view["keyspaces"].get(data.data_id)
        return (0 if found is None else found["keys"]) == keys

    await cluster.nodes[node_id].until("/v1/node", is_so, f"{keys} rows on {node_id}")


def keys_on(cluster: Deployment, node_id: str) -> int:
    """Return keys with a replica on a node."""
    data = cluster.image.schema.serving(TABLE)
    assert data is not None
    placement = cluster.image.ring.placements[data.placement]
    return sum(node_id in placement.row_for(token_of(key.encode())).writes for key in KEYS)


async def test_tablet_moves_with_its_data_and_the_source_deletes_it(three: Deployment) -> None:
    row = three.rows(TABLE)[0]
    (target,) = {"n1", "n2", "n3"} - {*row.reads}
    source = row.reads[0]
    before = keys_on(three, target)
    for name in (source, target):
        await stores(three, name, keys_on(three, name))
    await three.done(
        type="tablet_migration",
        moves=[{"table": TABLE, "tablet": 0, "from_node": source, "to_node": target}],
    )
    assert {*three.rows(TABLE)[0].reads} == {*row.reads} - {source} | {target}
    await check_all_keys_are_read(three, "n1", "n2", "n3")
    assert keys_on(three, target) > before
    for name in (source, target):
        await stores(three, name, keys_on(three, name))


async def test_balancer_fills_a_new_node_and_drains_a_leaving_one(three: Deployment) -> None:
    """Every key can be read and written through any node throughout."""
    balancer = await three.start_balancer()
    async with written(three, "n1", "n2"):
        await three.start_node("n4")
        await three.normal("n4")
        quarters = dict.fromkeys(("n1", "n2", "n3", "n4"), 4)
        await until(lambda: held(three) == quarters, "a quarter of the tablets on each", REST_S)
        await three.done(type="leave", node_id="n3")
        assert three.node_state("n3") == NodeState.LEFT
        assert held(three)["n3"] == 0
    await check_all_keys_are_read(three, "n1", "n2", "n4")
    answer = await balancer.until(
        "/v1/balance", lambda found: found["state"] == "balanced", "all to be even", REST_S
    )
    assert answer["stuck"] == {}
    counts = [held(three)[name] for name in ("n1", "n2", "n4")]
    assert max(counts) - min(counts) <= 1


async def test_table_is_split_and_merged_under_writes(three: Deployment) -> None:
    """Options cause the split, and a coordinator dies meanwhile. At the end no node has foreign rows."""
    await three.start_balancer()
    async with written(three, "n1", "n2", "n3"):
        await three.command(type="alter_table", name=TABLE, options={"min_tablet_count": 32})
        await until(lambda: len(three.rows(TABLE)) == 32, "32 tablets", REST_S)
        await three.start_node("n4")
        await three.normal("n4")
        eighths = dict.fromkeys(("n1", "n2", "n3", "n4"), 16)
        await until(lambda: held(three) == eighths, "all to be even", REST_S)
        three.coordinator.kill()
        few = {"options": {"max_tablet_count": 4}, "reset": ["min_tablet_count"]}
        await three.command(type="alter_table", name=TABLE, **few)
        await three.coordinator.start()
        await until(lambda: len(three.rows(TABLE)) == 4, "4 tablets", REST_S)
        halves = dict.fromkeys(("n1", "n2", "n3", "n4"), 2)
        await until(lambda: held(three) == halves, "all to be even again", REST_S)
    await check_all_keys_are_read(three, "n1", "n2", "n3", "n4")
    resizes = [r for r in three.image.requests.requests.values() if r.resizes]
    done = [r.tablet_count for r in resizes if r.status is RequestStatus.DONE]
    assert sorted(done) == [4, 8, 16, 16, 32], [(r.tablet_count, r.error) for r in resizes]
    for name in three.nodes:
        await stores(three, name, keys_on(three, name))
