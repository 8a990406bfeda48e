"""Loads on real processes: nodes report them, the balancer evens out bytes, and a crash loses none."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stele.domain.names import RequestStatus
from stele.domain.ring.partitioner import token_of
from stele.log.brokers import Brokers
from stele.log.flows import FlowWriter, flow_topic
from tests.deployment.commands import delete_topic
from tests.deployment.process import Start
from tests.deployment.processes import HTTP_OK, Deployment, nodes_of
from tests.polling import until
from tests.services.world import LogWriter

pytestmark = pytest.mark.broker

NAMES = ("n1", "n2", "n3")
TABLES = ("music.songs", "music.bands")
TABLETS = 16
KEYS_PER_TABLET = 2
LARGE, SMALL = 40_000, 20_000
CAPACITY = 10**9
REST_S = 240.0
OFF_MS = 12_000
"""The balancer listens for three seconds before it plans."""


@pytest.fixture
async def three(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Start three nodes with two tables. Tablets on n1 are larger, and only bytes have weight."""
    node = {"load_interval_s": 1, "rate_half_life_s": 1, "data_file_capacity": CAPACITY}
    async with nodes_of(kafka, topics, tmp_path, *NAMES, node=node) as cluster:
        for name, value in (
            ("minimal_tablet_size_for_balancing", "1"),
            ("tablet_rate_weight", "0"),
        ):
            await cluster.command(type="set_setting", name=name, value=value)
        await cluster.command(
            type="create_keyspace",
            name="music",
            replication={"dc1": 1},
            tablets=True,
            initial_tablets=TABLETS,
        )
        for table in TABLES:
            await cluster.command(type="create_table", name=table)
            await write(cluster, table)
        yield cluster


async def write(cluster: Deployment, table: str) -> None:
    """Write the same number of keys to each tablet."""
    rows, written, number = cluster.rows(table), Counter[int](), 0
    while sum(written.values()) < TABLETS * KEYS_PER_TABLET:
        key, number = f"key-{number}", number + 1
        tablet = (token_of(key.encode()) + 2**63) * TABLETS >> 64
        if written[tablet] < KEYS_PER_TABLET:
            written[tablet] += 1
            size = LARGE if rows[tablet].reads == ("n1",) else SMALL
            url = f"{cluster.nodes['n2'].url}/v1/data/{table}/{key}"
            async with cluster.http.put(url, data=os.urandom(size)) as answer:
                assert answer.status == HTTP_OK, await answer.text()


def reads_of(cluster: Deployment, table: str) -> list[tuple[str, ...]]:
    return [row.reads for row in cluster.rows(table)]


def by_size(found: dict[str, Any]) -> bool:
    return found["balanced_by"] == "size" and all(
        node["size_bytes"] for node in found["nodes"].values()
    )


async def stored(cluster: Deployment) -> Counter[str]:
    """Return the bytes of the tables in each node's store, counted after this call."""
    found = Counter[str]()
    for name in NAMES:
        await cluster.keys(name)
        view = await cluster.nodes[name].get("/v1/node")
        for table in TABLES:
            data = cluster.image.schema.serving(table)
            assert data is not None
            found[name] += view["keyspaces"].get(data.data_id, {"bytes": 0})["bytes"]
    return found


async def test_balancer_evens_out_bytes_of_unequal_tablets(three: Deployment) -> None:
    before = await stored(three)
    assert before["n1"] > 1.7 * max(before["n2"], before["n3"])
    balancer = await three.start_balancer()
    shown = await balancer.until("/v1/balance", by_size, "all loads to be known", REST_S)
    assert shown["why"] == "the loads of all 3 nodes are known"
    for node in shown["nodes"].values():
        assert node["capacity_bytes"] == CAPACITY
        assert node["report_age_s"] < REST_S

    def is_even(found: dict[str, Any]) -> bool:
        shares = [node["of_share"] for node in found["nodes"].values()]
        at_rest = found["state"] == "balanced" and not found["planned"]
        return at_rest and max(shares) - min(shares) < 0.25

    await balancer.until("/v1/balance", is_even, "bytes to be even", REST_S)
    after = await stored(three)
    assert sum(after.values()) == sum(before.values())
    assert max(after.values()) < 1.3 * min(after.values())
    counts = [node["tablets"] for node in (await balancer.get("/v1/balance"))["nodes"].values()]
    assert max(counts) - min(counts) > 1, "not by numbers of replicas"


async def test_tables_are_split_and_merged_by_tablet_size(three: Deployment) -> None:
    """Tablets of twice the target size are split, and are merged again when the target grows."""
    await three.command(type="set_setting", name="target_tablet_size_in_bytes", value=str(SMALL))
    before = await stored(three)
    await three.start_balancer()

    def has(tablets: int) -> Callable[[], bool]:
        return lambda: {len(three.rows(table)) for table in TABLES} == {tablets}

    await until(has(2 * TABLETS), "tablets to be split", REST_S)
    await three.command(type="set_setting", name="target_tablet_size_in_bytes", value="")
    await until(has(TABLETS), "tablets to be merged", REST_S)
    asked = [r for r in three.image.requests.requests.values() if r.resizes]
    done = [r for r in asked if r.status is RequestStatus.DONE]
    assert sorted(r.tablet_count for r in done) == [TABLETS] * 2 + [2 * TABLETS] * 2, asked
    assert all("bytes each" in r.reason for r in done if r.tablet_count > TABLETS)
    async with asyncio.timeout(REST_S):  # the rows left on the source are deleted
        while sum((await stored(three)).values()) != sum(before.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_restarted_balancer_reads_earlier_load_reports(
    three: Deployment, kafka: str, topics: str
) -> None:
    await three.command(type="switch_balancing_off")
    balancer = await three.start_balancer()
    held = await stored(three)

    def all_told(found: dict[str, Any]) -> bool:
        return {n: each["size_bytes"] for n, each in found["nodes"].items()} == held

    shown = await balancer.until("/v1/balance", all_told, "what is stored to be told", REST_S)
    for name in NAMES:
        three.nodes[name].kill()
    balancer.kill()
    loads = FlowWriter(Brokers(kafka), flow_topic(topics, "load"))
    loads.send("n1", b"no load")
    await loads.close()
    await asyncio.sleep(0.1)  # so that ages differ
    await balancer.start()
    again = await balancer.until("/v1/balance", by_size, "the loads to be back", REST_S)
    for name, node in again["nodes"].items():
        was = shown["nodes"][name]
        assert (node["size_bytes"], node["capacity_bytes"]) == (was["size_bytes"], CAPACITY)
        assert node["report_age_s"] > 0
    async with httpx.AsyncClient() as client:
        metrics = (await client.get(f"{balancer.url}/metrics")).text
    assert "stele_balancer_unreadable_total 1.0" in metrics


async def test_balancer_reports_a_missing_load_topic_and_continues(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    balancer = await start("tablet_balancer")
    await balancer.until("/healthz", lambda found: found["ok"], "it to be healthy")
    topic = flow_topic(writer.cluster, "load")
    await asyncio.to_thread(delete_topic, kafka, topic)
    health = await balancer.until(
        "/healthz", lambda found: "degraded" in found["reason"], "the reason to be said", REST_S
    )
    assert health["ok"] and topic in health["reason"] and "no such topic" in health["reason"]
    assert (await balancer.get("/v1/balance"))["state"] == "no_tablets"
