"""After a truncation a cluster continues with a snapshot of a catch-up replica, and the others do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from stele.domain.image import Image
from stele.domain.ring.ranges import placement_hash
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.placements.store import TableStore, holds_epoch, placements_at
from stele.runtime.kafka import ensure_topics
from stele_harness.stack.ports import free_port
from stele_harness.tables import current_placements, read_table
from tests.deployment.process import PLAIN_HTTP, Service
from tests.polling import wait_until
from tests.spark.checks import assert_topic, image_hash, settled
from tests.spark.conftest import Append
from tests.spark.histories import cluster_log, images
from tests.spark.test_job import make_job, make_options, reached, run_until, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stele.placements.job import Job

pytestmark = [pytest.mark.spark, pytest.mark.broker]
EVERY = 20
"""Epochs from one snapshot to the next."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from stele.placements import flow_query, job, watch

    monkeypatch.setattr(job, "LOOK_S", 0.5)
    monkeypatch.setattr(flow_query, "METADATA_AGE_MS", 500)
    monkeypatch.setattr(job, "SNAPSHOT_S", 0.5)
    monkeypatch.setattr(watch, "PATIENCE_S", 3.0)


def replica(kafka: str, cluster: str, folder: Path, port: int) -> Service:
    env = {
        "STELE_CLUSTER": cluster,
        "STELE_INSTANCE_ID": "cu-1",
        "STELE_KAFKA_BOOTSTRAP": kafka,
        "STELE_HTTP_PORT": str(port),
        "STELE_DATA_DIR": str(folder / "archive"),
    }
    folder.mkdir(exist_ok=True)
    return Service("catch_up", folder, env)


def truncate(kafka: str, cluster: str, offset: int) -> None:
    where = TopicPartition(f"stele.{cluster}.epochs", 0, offset)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_records([where])[where].result(20)


async def test_cluster_behind_a_truncation_continues_from_a_snapshot(
    spark: SparkSession, kafka: str, cluster: str, append: Append, folder: Path
) -> None:
    from stele.placements.cluster_states import ReadAgain

    good, cut = f"{cluster}-good", f"{cluster}-cut"
    log = cluster_log(cut, 150, EVERY)
    for name in (good, cut):
        ensure_topics(Brokers(kafka), name)
        append(name, log[:60])
    port = free_port()
    options = msgspec.structs.replace(
        make_options(kafka, cluster, folder, pattern=f"{cluster}-.*"),
        catch_up_urls=(f"http://127.0.0.1:{port}/",),
    )
    job = make_job(spark, options, folder)
    both = reached(job, **{good: log[:60], cut: log[:60]})
    await asyncio.to_thread(run_until, job, both, "the first 60 epochs")

    for name in (good, cut):
        append(name, log[60:120])
    catch_up = replica(kafka, cut, folder, port)
    await catch_up.start()
    try:
        await catch_up.until("/v1/archive", has_snapshot, "a snapshot")
        await catch_up.stop()
        truncate(kafka, cut, 120 - 1)  # the last record of the snapshot stays

        job = make_job(spark, options, folder)
        alone = reached(job, **{good: log[:120], cut: log[:60]})
        await asyncio.to_thread(job.start)
        try:
            await asyncio.to_thread(wait_for, job, alone, "the cluster that is whole")
            assert set(job.stopped) == {cut}
            assert "check that catch-up runs" in job.stopped[cut]
            await catch_up.start()
            with pytest.raises(ReadAgain, match="goes on with a snapshot"):
                await asyncio.to_thread(wait_for, job, lambda: False, "the snapshot")
        finally:
            await asyncio.to_thread(job.stop)
    finally:
        await catch_up.stop()
    append(cut, log[120:])
    job = make_job(spark, options, folder)
    await asyncio.to_thread(run_until, job, reached(job, **{cut: log}), "the end of the log")
    assert not job.stopped
    check_tables(kafka, folder / "delta", cut, log)


def has_snapshot(archive: Any) -> bool:
    found = [snapshot["epoch"] for snapshot in archive["snapshots"]]  # newest first
    return bool(found) and found[0] == 120 == archive["spans"][-1]["last"]


def check_tables(kafka: str, delta: Path, cluster: str, log: Sequence[bytes]) -> None:
    """Check that the tables have epochs up to 60 and from the snapshot of 120, and a gap between them."""
    expected = images(tuple(log))
    rows = read_table(delta, "events", cluster)
    epochs = sorted(row["epoch"] for row in rows if row["row_kind"] == "epoch")
    assert epochs == [*range(1, 61), *range(121, 151)]
    assert [row["epoch"] for row in rows if row["row_kind"] == "snapshot"] == [120]
    known = [epoch for epoch in range(151) if holds_epoch(delta, cluster, epoch)]
    assert known == [*range(61), *range(120, 151)]
    assert placement_hash(current_placements(delta, cluster)) == image_hash(expected[-1])
    for epoch in (20, 60, 120, 133, 150):
        assert placement_hash(placements_at(delta, cluster, epoch)) == image_hash(expected[epoch])
    past = read_table(delta, "placements_past", cluster)
    assert past
    assert all(row["from_epoch"] < row["to_epoch"] for row in past)
    assert {row["to_epoch"] for row in past}.isdisjoint(range(61, 120))
    assert_topic(kafka, cluster, expected[-1])


async def test_running_job_continues_a_log_recovered_in_a_recreated_topic(
    spark: SparkSession, kafka: str, topics: str, append: Append, folder: Path
) -> None:
    """The topic is deleted and recreated empty, as in `make drill`."""
    from stele.placements.cluster_states import ReadAgain
    from stele.placements.events_table import Events

    log = cluster_log(topics, 60, EVERY)
    last = images(log)[-1]
    append(topics, log)
    port = free_port()
    options = msgspec.structs.replace(
        make_options(kafka, topics, folder), catch_up_urls=(f"http://127.0.0.1:{port}/",)
    )
    catch_up = replica(kafka, topics, folder, port)
    await catch_up.start()
    job = make_job(spark, options, folder)
    try:
        await catch_up.until(
            "/v1/archive", lambda a: a["spans"][-1:] and a["spans"][-1]["last"] == 60, "all epochs"
        )
        await asyncio.to_thread(job.start)
        await asyncio.to_thread(wait_for, job, reached(job, **{topics: log}), "all epochs")
        await asyncio.to_thread(recreate_topic, kafka, topics)
        await asyncio.to_thread(wait_for, job, lambda: topics in job.stopped, "the stop")
        assert "recover the log (stele recover)" in job.stopped[topics]
        await catch_up.until("/v1/archive", lambda a: a["trouble"], "the replica to notice it")
        await recover(catch_up, last)
        with pytest.raises(ReadAgain, match="goes on with a snapshot"):
            await asyncio.to_thread(wait_for, job, lambda: False, "the snapshot")
        await asyncio.to_thread(job.stop)
        for _ in range(2):  # from the tables: the second time from those that the first run left
            job = make_job(spark, options, folder)
            await asyncio.to_thread(run_until, job, at(job, topics, 61), "the log that goes on")
            assert job.stopped == {}
    finally:
        await asyncio.to_thread(job.stop)
        await catch_up.stop()
    head = Events(TableStore(folder / "delta")).heads[topics]
    assert (head.epoch, head.log_id > last.log_id) == (61, True)
    assert head.next_offset < 60
    delta = folder / "delta"
    rows = read_table(delta, "events", topics)
    assert sorted(r["epoch"] for r in rows if r["row_kind"] == "epoch") == [*range(1, 61)]
    for epoch in (20, 60, 61):
        assert placement_hash(placements_at(delta, topics, epoch)) == image_hash(
            images(log)[min(epoch, 60)]
        )
    assert settled(kafka, topics, 61).marker.epoch == 61


def at(job: Job, cluster: str, epoch: int) -> Callable[[], bool]:
    return lambda: cluster in job.reached and job.reached[cluster].epoch == epoch


def recreate_topic(kafka: str, cluster: str) -> None:
    topic, admin = flow_topic(cluster, "epochs"), AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in admin.list_topics(timeout=240).topics, "the deletion")
    ensure_topics(Brokers(kafka), cluster)


async def recover(catch_up: Service, last: Image) -> None:
    """The replica ends after the recovery, as its supervisor expects."""
    asked: dict[str, str | int] = {
        "epoch": last.epoch,
        "state_id": last.state_id.hex(),
        "known_epoch": last.epoch,
        "known_log_id": last.log_id.hex(),
        "reason": "the topic was lost",
    }
    async with httpx.AsyncClient(timeout=240, verify=PLAIN_HTTP) as client:
        answer = await client.post(f"{catch_up.url}/v1/recover", params=asked)
    assert answer.status_code == 200, answer.text
    await asyncio.to_thread(catch_up.process.wait, 60)
    await catch_up.start()
