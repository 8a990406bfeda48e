"""Hot tablets on real processes: nodes count, the tablet of a hot key is isolated, a busy table is split."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stele.domain.names import RequestStatus
from stele.domain.ring.partitioner import token_of
from stele.domain.tablets.maps import tablet_of
from tests.deployment.processes import Deployment, nodes_of
from tests.polling import until

pytestmark = pytest.mark.broker

NAMES = ("n1", "n2", "n3")
TABLE = "music.songs"
TABLETS = 8
CLIENTS = 8
HALF_LIFE_S = 2
TARGET = 4
"""Operations per second. Every machine serves more than this."""
REST_S = 240.0


@pytest.fixture
async def three(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Return three nodes with an empty table, with rates that dominate its weight."""
    node = {"load_interval_s": 0.5, "rate_half_life_s": HALF_LIFE_S}
    async with nodes_of(kafka, topics, tmp_path, *NAMES, node=node) as cluster:
        for name, value in {
            "tablet_rate_weight": 90,
            "minimal_tablet_rate_for_balancing": 1,
            "target_tablet_rate": TARGET,
        }.items():
            await cluster.command(type="set_setting", name=name, value=str(value))
        await cluster.command(
            type="create_keyspace",
            name="music",
            replication={"dc1": 1},
            tablets=True,
            initial_tablets=TABLETS,
        )
        options = {"max_tablet_count": 2 * TABLETS}
        await cluster.command(type="create_table", name=TABLE, options=options)
        yield cluster


@asynccontextmanager
async def busy(cluster: Deployment, keys: Iterator[str]) -> AsyncIterator[None]:
    """Clients write one key after the other inside the block. Writes may fail."""

    async def write() -> None:
        for key in keys:
            url = f"{cluster.nodes['n1'].url}/v1/data/{TABLE}/{key}"
            async with cluster.http.put(url, data=b"la") as answer:
                await answer.read()

    clients = [asyncio.create_task(write()) for _ in range(CLIENTS)]
    try:
        yield
    finally:
        for client in clients:
            client.cancel()
        for client in clients:
            with contextlib.suppress(asyncio.CancelledError):
                await client


async def test_hot_tablet_is_isolated_and_a_busy_table_is_split(three: Deployment) -> None:
    balancer = await three.start_balancer()
    hot = tablet_of(TABLETS, token_of(b"hot"))

    def is_alone() -> bool:
        rows = three.rows(TABLE)
        return sum(row.reads == rows[hot].reads for row in rows) == 1

    sizes = f"/v1/balance/sizes?table={TABLE}&order=rate&limit=1"
    async with busy(three, itertools.repeat("hot")):
        shown = await balancer.until(
            sizes,
            lambda found: any(each["writes_per_s"] > TARGET for each in found["sizes"]["largest"]),
            "what is written to be told",
            REST_S,
        )
        assert [each["tablet"] for each in shown["sizes"]["largest"]] == [hot]
        await until(is_alone, "the hot tablet to be alone", REST_S)
        assert len(three.rows(TABLE)) == TABLETS
        why = (await balancer.get(sizes))["sizes"]["why"]
        assert f"its hottest tablet, {hot}, serves" in why and "a split does not help" in why
        status = await balancer.get("/v1/balance")
        assert (status["balanced_by"], status["rate_weight"]) == ("size", 90)
        (node,) = three.rows(TABLE)[hot].reads
        assert status["nodes"][node]["rate"] > TARGET

    def is_split() -> bool:
        return len(three.rows(TABLE)) == 2 * TABLETS

    async with busy(three, (f"key-{number}" for number in itertools.count())):
        await until(is_split, "the table to be split", REST_S)
    (split,) = [r for r in three.image.requests.requests.values() if r.resizes]
    assert split.status is RequestStatus.DONE
    assert "its hottest tablet" in split.reason and f"the target is {TARGET}" in split.reason
