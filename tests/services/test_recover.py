"""Disasters on real processes: the topic is lost or rolled back, and no epoch of a process is lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stele.domain.commands import FoundCluster, SetSetting
from stele.domain.image import EMPTY
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived
from stele.log.brokers import Brokers
from stele.log.codec import encode_epoch
from stele.log.flows import flow_topic
from stele.runtime.kafka import ensure_topics
from tests.deployment.commands import change, fill, is_well, newest, spans
from tests.deployment.process import Service
from tests.deployment.processes import Deployment
from tests.domain.epochs import LOG_ID
from tests.domain.epochs import History as Story
from tests.polling import until

pytestmark = [pytest.mark.broker, pytest.mark.slow]


async def delete(site: Deployment) -> None:
    """Delete the topic."""
    topic = flow_topic(site.cluster, "epochs")
    admin = AdminClient({"bootstrap.servers": site.kafka})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
    for _ in range(100):
        if topic not in (await asyncio.to_thread(admin.list_topics, timeout=240)).topics:
            break
        await asyncio.sleep(0.1)


async def replace_topic(site: Deployment, records: list[bytes]) -> None:
    """Recreate the topic with only these records."""
    topic = flow_topic(site.cluster, "epochs")
    await delete(site)
    await asyncio.to_thread(ensure_topics, Brokers(site.kafka), site.cluster)
    producer = Producer({"bootstrap.servers": site.kafka, "acks": "all"})
    for value in records:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


async def test_topic_emptied_while_all_processes_are_down_is_recovered(
    site: Deployment,
) -> None:
    """Retention may delete all records: the epochs are on disks, and none is in the topic."""
    log, one, two = await site.metadata_log(), await site.catch_up(1), await site.catch_up(2)
    await fill(log, 60)
    last = await newest(log)
    for replica in (one, two):
        await replica.until(
            "/v1/archive", lambda a: spans(a)[-1:] and spans(a)[-1][1] >= last, "archived"
        )
    for process in (log, one, two):
        process.kill()
        await asyncio.to_thread(process.process.wait, 30)
    epochs = flow_topic(site.cluster, "epochs")
    end = TopicPartition(epochs, 0, OFFSET_END)
    admin = AdminClient({"bootstrap.servers": site.kafka})
    await asyncio.to_thread(admin.delete_records([end])[end].result, 30)

    await asyncio.gather(one.start(), two.start())
    async with site.supervised():
        for replica in (one, two):
            found = await replica.until("/v1/archive", lambda a: a["trouble"], "it to say so")
            assert "stele recover" in found["trouble"]
        refused = await site.stele("recover", "--dry-run", fails=True)
        assert (
            f"{site.urls.split(',')[2]} does not report what it holds" in refused
        )  # the process never ran
        without = site.without(3)
        told = await site.stele("recover", "--dry-run", *without)
        assert told.count(f" of log {found['log_id']}") >= 2
        assert "did not answer and may have read later ones" in told
        answer = await site.stele(
            "recover", "--reason", "nothing was left of the topic", "--json", *without
        )
        assert answer["epoch"] == answer["last_epoch"] + 1 > last
        for process in (log, one, two):
            await is_well(process)
        assert await change(log, "after", "1") > last + 1
        end_epoch = await newest(log)
        for replica in (one, two):
            found = await replica.until(
                "/v1/archive",
                lambda a: spans(a)[-1:] and spans(a)[-1][1] >= end_epoch,
                "it goes on",
            )
            assert spans(found)[0][0] == 1


@pytest.mark.parametrize("was_started", [False, True])
async def test_epochs_given_up_by_a_recovery_can_be_taken_back(
    site: Deployment, was_started: bool
) -> None:
    """Follows the recovery guide: the epochs are in the folder of a replica that was unavailable."""
    log, one, two = await site.metadata_log(), await site.catch_up(1), await site.catch_up(2)
    await fill(log, 40)
    kept = await newest(log)
    for replica in (one, two):
        await replica.until("/v1/archive", _has(kept), "archived")
    await _killed(one)
    late = await change(log, "late", "1")
    await two.until("/v1/archive", _has(late), "archived")
    await _killed(two, log)

    await replace_topic(site, [])
    site.running.remove(two)
    await asyncio.gather(one.start(), log.start())
    async with site.supervised():
        given_up = await site.stele(
            "recover", "--reason", "it must go on", "--json", *site.without(2, 3)
        )
        kept = int(given_up["last_epoch"])
        assert kept < late
        await is_well(log)
        await change(log, "meanwhile", "1")
        assert "late" not in (await log.get("/v1/state"))["settings"]
        if was_started:
            await two.start()
            site.running.append(two)
            aside = site.folder_of(2) / "segments"
            await until(lambda: [*aside.glob("*.avro.lost")], "they are set aside", 60)
            await two.until("/v1/archive", _has(await newest(log)), "it follows")

    await _killed(*site.running)
    if was_started:
        _taken_back(site.folder_of(2), kept)
    await delete(site)
    await asyncio.to_thread(shutil.rmtree, site.folder_of(1))
    site.running = [log, two]
    await two.start()
    async with site.supervised():
        answer = await site.stele(
            "recover", "--reason", "they are here", "--take", "cu-2", "--json", "--no-wait"
        )
        assert answer["last_epoch"] >= late
        await is_well(log)
        settings = (await log.get("/v1/state"))["settings"]
        assert settings["late"] == "1" and "meanwhile" not in settings
        end = await change(log, "after", "1")
        await one.start()
        found = await one.until("/v1/archive", _has(end), "the others' archive")
        assert (spans(found)[0][0], found["log_id"]) == (1, answer["log_id"])


def _taken_back(folder: Path, kept: int) -> None:
    """Restore the epochs that were set aside after epoch ``kept``, in place of later ones."""
    (lost,) = (folder / "segments").glob("*.avro.lost")
    first = lost.name.partition("-")[0]
    for segment in (folder / "segments").glob("*.avro"):
        if segment.stem.partition("-")[2] >= first:  # also the open one
            segment.unlink()
    lost.rename(lost.with_suffix(""))
    for snapshot in (folder / "snapshots").glob("*.avro"):
        if int(snapshot.name.partition("-")[0]) > kept:
            snapshot.unlink()


def _has(epoch: int) -> Callable[[Any], bool]:
    return lambda answer: bool(spans(answer)) and spans(answer)[-1][1] >= epoch


async def _killed(*services: Service) -> None:
    for service in services:
        service.kill()
        await asyncio.to_thread(service.process.wait, 30)


async def test_backup_added_to_an_empty_log_is_recovered_and_not_founded_over(
    site: Deployment,
) -> None:
    log, replica = await site.metadata_log(waits=False, found="no"), await site.catch_up(1)
    await log.until("/healthz", lambda a: "stele found" in a["reason"], "there is no cluster")
    assert "there is no cluster yet" in await site.stele("status")
    await replica.stop()
    folder = site.folder_of(1)
    await asyncio.to_thread(shutil.rmtree, folder)
    story = Story(empty=EMPTY)
    assert story.apply(FoundCluster(f"{site.cluster}/1", LOG_ID.hex())) is None
    for number in range(40):
        assert story.apply(SetSetting("s", str(number))) is None
    records = [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs]
    await asyncio.to_thread(Archive(folder).segments.adopt, records)
    last = story.image.epoch

    await replica.start()
    refused = await site.stele("found", "--reason", "there is none", fails=True)
    assert f"holds epoch {last} of log {LOG_ID.hex()}" in refused
    assert "`stele recover`" in refused
    assert (await log.get("/v1/state"))["epoch"] == 0
    reason = (await log.get("/healthz"))["reason"]
    assert f"holds epoch {last}" in reason and "`stele recover`" in reason
    await replica.until(
        "/healthz", lambda a: "cannot be read any further" in a["reason"], "it stands still"
    )
    assert "cannot be read any further" in replica.process.tail()
    async with site.supervised():
        answer = await site.stele(
            "recover", "--reason", "from a backup", "--json", *site.without(2, 3)
        )
        assert answer["last_epoch"] == last
        await is_well(log)
        assert await change(log, "after", "1") > last + 1
    assert (await log.get("/v1/topology"))["cluster_id"] == f"{site.cluster}/1"
