"""Settings move the beginning of the archive on real processes: equal for all replicas, and reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from stele.domain.model.archive import UPKEEP
from stele.log.archive.archive import Archive
from tests.deployment.commands import change, command, fill, spans
from tests.deployment.process import Service, Start
from tests.deployment.processes import Deployment

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEPT = 60


async def settled_beginning(log: Service, *replicas: Service) -> dict[str, Any]:
    """Return the beginning of the archive, once all these replicas have deleted older epochs."""
    found = dict[str, Any]()
    async with asyncio.timeout(240):
        while True:
            found = (await log.get("/v1/catch_up"))["archive"]["trimmed"] or {"epoch": 0}
            answers = [await replica.get("/v1/archive") for replica in replicas]
            held = [[first for first, _ in spans(answer)] for answer in answers]
            oldest = [min((s["epoch"] for s in a["snapshots"]), default=0) for a in answers]
            if found["epoch"] and all(
                h == [o] == [found["epoch"]] for h, o in zip(held, oldest, strict=True)
            ):
                return found
            await asyncio.sleep(0.2)


async def test_expired_epochs_are_deleted_and_reads_of_them_get_a_hint(
    start: Start, kafka: str, topics: str, tmp_path: Path
) -> None:
    site = Deployment(start, tmp_path, kafka, topics)
    log = await site.metadata_log(found_features="none")
    await start("coordinator", catch_up_urls=site.urls)
    for name, value in (("snapshot_epochs", "40"), ("truncate_behind", "1")):
        await change(log, name, value)
    store = f"{tmp_path}/store"
    mirrored = {"archive_store": store, "archive_store_interval_s": 0.5}
    one, two = [await site.catch_up(number, **mirrored) for number in (1, 2)]
    third = await site.catch_up(3, **mirrored)
    await log.until("/v1/catch_up", lambda a: len(a["replicas"]) == 3, "three members")
    asked = await command(log, "remembered", type="set_setting", name="early", value="1")
    assert asked.status_code == 200
    await fill(log, 120)
    await log.until("/v1/catch_up", lambda a: a["archive"]["truncated"], "the log is truncated")
    third.kill()

    await change(log, "archive_keep_epochs", str(KEPT))
    told = await site.stele("catch-up", "show")
    assert f"feature {UPKEEP} is not enabled" in told
    await site.stele("features", "enable", UPKEEP)
    await fill(log, 80)
    await settled_beginning(log, one, two)
    await third.start()
    await fill(log, 80)
    await settled_beginning(log, one, two, third)
    await change(log, "archive_keep_epochs", "1000000")  # the beginning does not move from now on
    trimmed = await settled_beginning(log, one, two, third)
    first = trimmed["epoch"]
    assert trimmed["stores"] == [store]
    assert first <= (await log.get("/v1/catch_up"))["archive"]["truncated"]["epoch"]

    await check_reads_get_a_hint(site, log, one, first, store)
    again = await command(log, "remembered", type="set_setting", name="early", value="1")
    assert again.json()["code"] == "request_id_expired", again.text
    assert "deleted" in again.json()["message"]

    newcomer = await site.stele("backup", "verify", store, "--json")
    assert (newcomer["first_epoch"], newcomer["flaws"]) == (1, [])
    for service in (one, two, third):
        service.kill()
    folded = [await asyncio.to_thread(folded_from, site.folder_of(n), first) for n in (1, 2, 3)]
    assert folded[0] == folded[1] == folded[2]


def folded_from(folder: Path, first: int) -> tuple[int, bytes, list[bytes]]:
    """Return the state after the first snapshot and the later epochs, its offsets, and its two files."""
    archive = Archive(folder)
    start, kept = archive.begin(decided=True, at_most=first)
    assert kept is not None
    until = first + 40
    image = archive.fold_on(start, until).image
    return image.epoch, image.state_id, [p.read_bytes() for p in (kept.path, kept.decided_path)]


async def check_reads_get_a_hint(
    site: Deployment, log: Service, replica: Service, first: int, store: str
) -> None:
    for path in (f"/v1/epochs/{first - 1}", "/v1/epochs?from=1", f"/v1/state?epoch={first - 1}"):
        answer = await ask(log, path)
        assert answer.status_code == 404, path
        error = answer.json()
        assert error["code"] == "epoch_deleted"
        assert f"begins at epoch {first}" in error["message"] or f"{first + 1}" in error["message"]
        assert store in error["message"]
    assert (await ask(log, f"/v1/state?epoch={first}")).status_code == 200
    assert (await ask(log, f"/v1/diff?from=3&to={first}")).status_code == 404
    answer = await ask(replica, "/v1/records?from=1")
    assert answer.json()["code"] == "epoch_deleted"
    assert store in answer.json()["message"]
    for arguments in (("log", "search", "--text", "nobody"), ("log", "stats", "--all")):
        assert f"epochs up to {first} were deleted" in await site.stele(*arguments)
    told = await site.stele("epochs", "--from", "1", fails=True)
    assert store in told
    assert "epoch_deleted" not in await site.stele("log", "tail", "--last", "100000")
    told = await site.stele("catch-up", "show")
    assert f"begins at epoch {first}; older ones are in {store}" in told


async def ask(service: Service, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=240) as client:
        return await client.get(f"{service.url}{path}")
