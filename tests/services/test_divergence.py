"""A replica with a diverged state restarts with an empty folder, on real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.domain.model.archive import UPKEEP
from stele.domain.request_memory import to_facts
from stele.log.archive.archive import Archive
from stele.log.archive.snapshots import head_of
from tests.deployment.commands import change, fill, is_well, spans
from tests.deployment.process import Service, Start
from tests.deployment.processes import Deployment

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def write_diverged_snapshot(folder: Path) -> None:
    """Replace the newest snapshot of the folder by a valid one of a state that never existed."""
    archive = Archive(folder)
    start, kept = archive.begin(decided=True)
    assert kept is not None and start.anchor is not None
    features = start.image.features
    settings = features.settings.set("never", "set")
    image = msgspec.structs.replace(
        start.image, features=msgspec.structs.replace(features, settings=settings)
    )
    decided = [*to_facts(image.decided)]
    for each in archive.snapshots.all():
        archive.snapshots.forget(each)
    head = head_of(image, start.next_offset, start.anchor, kept.head.at_ms)
    archive.snapshots.write(image, head, decided)


async def wait_until_reported(log: Service, replica_id: str, times: int) -> None:
    def told(answer: Any) -> bool:
        rows = {row["replica_id"]: row for row in answer["replicas"]}
        return bool(rows[replica_id].get("began_anew", 0) == times)

    await log.until("/v1/catch_up", told, f"{replica_id} to have diverged {times} times", 60)


async def restart_diverged(site: Deployment, replica: Service, number: int) -> None:
    """Restart the replica with a diverged state. No supervisor may start it meanwhile."""
    replica.kill()
    await asyncio.to_thread(write_diverged_snapshot, site.folder_of(number))
    await replica.start()


async def test_diverged_replica_restarts_empty_and_agrees_again(
    start: Start, kafka: str, topics: str, tmp_path: Path
) -> None:
    site = Deployment(start, tmp_path, kafka, topics)
    log = await site.metadata_log()
    await start("coordinator", catch_up_urls=site.urls)
    await change(log, "snapshot_epochs", "30")
    replicas = [await site.catch_up(number) for number in (1, 2, 3)]
    await log.until("/v1/catch_up", lambda a: len(a["replicas"]) == 3, "three members")
    await site.stele("features", "enable", UPKEEP)
    await fill(log, 80)
    await log.until("/v1/catch_up", lambda a: a["agreed"], "a snapshot that they agree on")

    await restart_diverged(site, replicas[2], 3)
    async with site.supervised():
        await site.stele("log", "snapshot")
        await wait_until_reported(log, "cu-3", 1)
        await is_well(replicas[2])
        await agrees(site, log, "cu-3")
        aside = [*site.folder_of(3).glob("diverged-*")]
        assert len(aside) == 1
        assert (aside[0] / "replica.json").exists()
        answer = await replicas[2].get("/v1/archive")
        assert [first for first, _ in spans(answer)] == [1]
        told = await site.stele("log", "search", "--fact", "ReplicaDiverged")
        assert "cu-3 has diverged (time 1)" in told
        assert "started empty" in await site.stele("catch-up", "show")


async def agrees(site: Deployment, log: Service, replica_id: str) -> None:
    await site.stele("log", "snapshot")

    def does(answer: Any) -> bool:
        return bool(answer["agreed"]) and replica_id in answer["agreed"][0]["members"]

    await log.until("/v1/catch_up", does, f"{replica_id} to agree with the others", 60)
