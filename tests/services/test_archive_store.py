"""The archive in an object store on real processes: mirrored, backed up, and the source of a recovery."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.cli.main import run
from tests.deployment.commands import change, command, fill, is_well, newest, spans
from tests.deployment.process import Service, services
from tests.deployment.processes import Deployment
from tests.servers import S3Server, s3_server
from tests.services.test_recover import replace_topic

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def own_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Return a server that the test may stop."""
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("STELE_ARCHIVE_STORE_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
async def site(
    kafka: str, topics: str, redis_url: str, tmp_path: Path, own_s3: S3Server
) -> AsyncIterator[Deployment]:
    async with services(kafka, topics, redis_url, tmp_path) as start:
        yield Deployment(start, tmp_path, kafka, topics)


async def stele(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON output of a command line that runs in this process."""
    capsys.readouterr()
    code = await asyncio.to_thread(run, [*arguments, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, f"{out}\n{err}"
    return msgspec.json.decode(out)


async def is_whole(
    capsys: pytest.CaptureFixture[str], log: Service, where: str, last: int
) -> dict[str, Any]:
    """Verify a store, which must have at least all epochs up to this one."""
    verdict: dict[str, Any] = await stele(capsys, "backup", "verify", where)
    assert (verdict["first_epoch"], verdict["flaws"]) == (1, [])
    assert verdict["last_epoch"] >= last
    epoch = await log.get(f"/v1/epochs/{verdict['last_epoch']}")
    assert verdict["state_id"] == epoch["state_id"]
    return verdict


async def end(service: Service) -> None:
    service.kill()
    await asyncio.to_thread(service.process.wait, 30)


async def test_cluster_continues_from_the_archive_store_alone(
    site: Deployment,
    own_s3: S3Server,
    kafka: str,
    topics: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = f"s3://{own_s3.new_bucket()}"
    mirror, backup = f"{bucket}/mirror", f"{bucket}/backup"
    mirrored = {
        "archive_store": mirror,
        "archive_store_interval_s": 0.3,
        "archive_store_timeout_s": 2,
    }
    log, one = await site.metadata_log(), await site.catch_up(1, **mirrored)
    await change(log, "snapshot_epochs", "50")
    first = await command(log, "first", type="set_setting", name="early", value="1")
    await fill(log, 120)
    last = await newest(log)

    def is_mirrored(answer: Any) -> bool:
        store = answer["store"] or {"epoch": 0, "snapshot_epoch": 0}
        return bool(store["epoch"] >= last and store["snapshot_epoch"] >= 50)

    await one.until("/v1/archive", is_mirrored, "all is in the store")

    # While the store is unavailable everything else works, and it receives missed epochs later.
    own_s3.stop()
    await fill(log, 60)
    await one.until("/v1/archive", lambda a: a["store"]["why"], "the store is missed")
    assert (await one.get("/healthz"))["ok"]
    own_s3.start()
    last = await newest(log)
    await one.until("/v1/archive", is_mirrored, "what came meanwhile is in the store, too")

    # A backup, an incremental backup, and a verification of both copies.
    done = await stele(capsys, "backup", backup, "--catch-up", one.url)
    assert (done["first_epoch"], done["flaws"]) == (1, [])
    assert done["last_epoch"] >= last
    await fill(log, 20)
    last = await newest(log)
    await one.until("/v1/archive", is_mirrored, "the rest is in the store")
    done = await stele(capsys, "backup", backup, "--catch-up", one.url)
    assert done["last_epoch"] >= last
    assert done["put_files"] < done["files"]
    assert (await is_whole(capsys, log, mirror, last))["snapshots"]
    assert (await is_whole(capsys, log, backup, last))["snapshots"]

    # The topic is truncated, and the only replica loses its disk: a new one reads all from the store.
    await change(log, "truncate_behind", "1")
    assert await site.begins_behind(50) > 50
    last = await newest(log)
    await one.until("/v1/archive", is_mirrored, "all is in the store before the disk is lost")
    await end(one)
    shutil.rmtree(site.folder_of(1))
    two = await site.catch_up(2, **mirrored)
    last = await newest(log)

    def has_all(answer: Any) -> bool:
        return len(spans(answer)) == 1 and spans(answer)[0][0] == 1 and spans(answer)[0][1] >= last

    await two.until("/v1/archive", has_all, "the empty replica is filled")
    await two.until("/v1/archive", is_mirrored, "it goes on where the other one was")

    # Topic, processes and disks are lost. Only the store remains.
    site.running.clear()
    await end(two)
    await end(log)
    await replace_topic(site, [])
    told = await stele(capsys, "restore", mirror, "--into", str(site.folder_of(3)))
    assert told["last_epoch"] >= last
    three = await site.catch_up(3, **mirrored)
    await three.until("/v1/archive", lambda a: a["trouble"], "it notices that its log is gone")
    async with site.supervised():
        recovered = await site.stele(
            "recover", "--reason", "all is lost", "--no-wait", "--json", *site.without(1, 2)
        )
        assert recovered["last_epoch"] == told["last_epoch"]
        site.running.append(log)
        await is_well(log)
        again = await command(log, "first", type="set_setting", name="early", value="1")
        assert again.json()["epoch"] == first.json()["epoch"]
        last = await change(log, "after", "1")
        assert last > recovered["epoch"]
        await three.until("/v1/archive", is_mirrored, "the recovered log is in the store")
        verdict = await is_whole(capsys, log, mirror, last)
        assert verdict["snapshots"][-1] == recovered["epoch"]
