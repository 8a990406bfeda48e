"""Change data capture on real processes: consumers read each acknowledged write while nodes come and go."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stele.log.brokers import Brokers
from stele.log.ends import read_topic
from tests.deployment.processes import HTTP_OK, Deployment, following
from tests.polling import until

pytestmark = pytest.mark.broker

NO_REDIS = "redis://127.0.0.1:1/0"
FOUNDERS = ("n1", "n2", "n3")
ON_RING, IN_TABLETS = "library.books", "music.songs"
MARGIN_S = 10
"""The smallest margin after which a generation starts."""
NODE = {"data_timeout_s": 3, "load_interval_s": 0.5}
SECOND_US = 1_000_000
TOPIC_S = READ_S = FOUND_S = 240
POLL_S = 0.1
WRITERS = 3
WRITES = 100
PAUSE_S = 0.05


@pytest.fixture
async def live(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Start three nodes, with a captured table on the ring and one in tablets."""
    async with following(kafka, topics, NO_REDIS, tmp_path) as cluster:
        cluster.log_url = (await cluster.start("metadata_log", http_port=cluster.ports[3])).url
        await until(lambda: cluster.image.cluster, "the founding")
        await cluster.command(type="set_setting", name="cdc_margin_s", value=str(MARGIN_S))
        await cluster.start("coordinator", resend_s=0.5, barrier_patience_s=2)
        await asyncio.gather(*(cluster.start_node(name, **NODE) for name in FOUNDERS))
        await cluster.serve_keyspace(*FOUNDERS)
        await cluster.command(
            type="create_keyspace",
            name="music",
            replication={"dc1": 3},
            tablets=True,
            initial_tablets=4,
        )
        for table in (ON_RING, IN_TABLETS):
            await cluster.command(
                type="create_table", name=table, options={"cdc": "{'preimage': true}"}
            )
        yield cluster


class Writers:
    """Clients that each write a counter to a separate key, one write after the other."""

    def __init__(self, cluster: Deployment) -> None:
        self.cluster = cluster
        self.via: Sequence[str] = FOUNDERS
        self.acknowledged = defaultdict[tuple[str, str], list[int]](list)
        self.attempted = defaultdict[tuple[str, str], int](int)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def write(self, table: str, key: str) -> bool:
        self.attempted[table, key] += 1
        number = self.attempted[table, key]
        via = self.cluster.nodes[self.via[number % len(self.via)]].url
        url = f"{via}/v1/data/{table}/{key}"
        try:
            async with self.cluster.http.put(url, data=str(number).encode()) as answer:
                if answer.status == HTTP_OK:
                    self.acknowledged[table, key].append(number)
                return answer.status == HTTP_OK
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def go_on(self, writes: int) -> None:
        goal = self.count + writes
        await until(lambda: self.count >= goal, f"{writes} more acknowledged writes")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()

        async def keep_on(table: str, key: str) -> None:
            while not stop.is_set():
                await self.write(table, key)
                await asyncio.sleep(PAUSE_S)

        tasks = [
            asyncio.create_task(keep_on(table, f"key-{number}"))
            for table in (ON_RING, IN_TABLETS)
            for number in range(WRITERS)
        ]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)


async def ask(cluster: Deployment, path: str, **asked: str) -> dict[str, Any]:
    async with cluster.http.get(cluster.nodes["n2"].url + path, params=asked) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == HTTP_OK, found
        return found


async def sets_of(cluster: Deployment, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ask(cluster, "/v1/cdc/streams", table=table))["sets"]
    return found


async def read(
    cluster: Deployment, table: str, sets: list[dict[str, Any]], until_us: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the changes by key, as a consumer reads them: set by set, and stream by stream."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    async with asyncio.timeout(READ_S):
        for stream in [stream for streams in sets for stream in streams["streams"]]:
            cursor, ended = "", False
            while not ended:
                page = await ask(
                    cluster,
                    "/v1/cdc/changes",
                    table=table,
                    stream=stream["stream"],
                    after=cursor,
                    limit="20",
                )
                for change in page["changes"]:
                    found[base64.b64decode(change["key"]).decode()].append(change)
                cursor = page["cursor"]
                ended = page["ended"] or page["complete_to_us"] >= until_us
                if not (page["more"] or ended):
                    await asyncio.sleep(POLL_S)
    return found


def numbers(changes: list[dict[str, Any]], field: str) -> list[int]:
    return [int(base64.b64decode(c[field])) for c in changes if field in c]


def check(writers: Writers, table: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """Check that each acknowledged write was read at least once, in order, and nothing else was read."""
    keys = [key for of, key in writers.acknowledged if of == table]
    assert {*found} == {*keys}
    for key in keys:
        read_numbers = numbers(found[key], "value")
        assert read_numbers == sorted(read_numbers)
        assert {*read_numbers} >= {*writers.acknowledged[table, key]}
        assert {*read_numbers} <= {*range(1, writers.attempted[table, key] + 1)}
        # The preimage of a change is an earlier value.
        images = numbers(found[key], "before")
        assert len(images) >= len(read_numbers) - 2
        assert all(image < value for image, value in zip(images, read_numbers[1:], strict=False))


async def check_topic(cluster: Deployment, writers: Writers, table: str) -> None:
    """Check that the topic has each acknowledged write. A restart may repeat some records."""

    def first_seen() -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        for _, value in read_topic(Brokers(cluster.kafka), f"stele.{cluster.cluster}.cdc.{table}"):
            after = json.loads(value or b"")["after"]
            key = base64.b64decode(after["key"]).decode()
            number = int(base64.b64decode(after["value"]))
            if number not in found[key]:
                found[key].append(number)
        return found

    wanted = {key: numbers for (of, key), numbers in writers.acknowledged.items() if of == table}

    async with asyncio.timeout(TOPIC_S):
        while True:
            found = await asyncio.to_thread(first_seen)
            if all({*found[key]} >= {*numbers} for key, numbers in wanted.items()):
                break
            await asyncio.sleep(POLL_S)
    for key, numbers in found.items():
        assert numbers == sorted(numbers), key


async def test_acknowledged_writes_are_captured_during_joins_leaves_and_splits(
    live: Deployment,
) -> None:
    """The test takes a minute, since a generation starts ten seconds after its commit."""
    writers = Writers(live)

    async def first_generation_holds() -> None:
        while not await writers.write(ON_RING, "key-0"):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    await asyncio.wait_for(first_generation_holds(), FOUND_S)
    before = {table: await sets_of(live, table) for table in (ON_RING, IN_TABLETS)}
    connector = await live.start("cdc_connector", cdc_partitions=2)
    async with writers.running():
        await writers.go_on(WRITES)
        await live.start_node("n4", **NODE)
        await live.normal("n4")
        newest = live.image.cdc.newest()
        assert newest is not None
        await writers.go_on(WRITES)
        await live.start_balancer()
        await live.command(type="tablet_resize", name=IN_TABLETS, tablets=8)
        await until(lambda: len(live.rows(IN_TABLETS)) == 8, "the split")
        split = await sets_of(live, IN_TABLETS)
        assert [len(each["streams"]) for each in split] == [8]
        await live.nodes["n1"].until(
            f"/v1/cdc/changes?table={ON_RING}&limit=10000",
            lambda page: page["complete_to_us"] > 1000 * newest.since_ms,
            "changes of the new generation",
        )
        live.nodes["n3"].kill()
        connector.kill()
        writers.via = ("n1", "n2", "n4")
        await writers.go_on(WRITES)
        await live.nodes["n3"].start()
        await connector.start()
        await live.done(type="leave", node_id="n4")
        writers.via = FOUNDERS
        await writers.go_on(WRITES)
    end_us = time.time_ns() // 1000 + SECOND_US
    for table in (ON_RING, IN_TABLETS):
        sets = await sets_of(live, table)
        check(writers, table, await read(live, table, sets, end_us))
        if table == IN_TABLETS:
            # Streams of split and merged tablets can still be read.
            for earlier in (before[table], split):
                check(writers, table, await read(live, table, earlier, end_us))
        else:
            assert len(sets) > len(before[table])
        await check_topic(live, writers, table)
    told = await live.stele("cdc", "tail", IN_TABLETS, "--no-follow")
    assert "key-0" in told
