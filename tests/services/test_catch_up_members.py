"""Members of the archive on real processes: changed by a command, and after the death of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.commands import change, fill, snapshots
from tests.deployment.process import Service, Start
from tests.deployment.processes import Deployment

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DEAD_AFTER_S = 12


def members(answer: Any) -> list[str]:
    return [each["replica_id"] for each in answer["replicas"] if each["state"] == "member"]


async def until_members(log: Service, *names: str, deadline_s: float = 60.0) -> Any:
    what = f"{', '.join(names)} to be the members"
    found = lambda answer: members(answer) == [*names]  # noqa: E731
    return await log.until("/v1/catch_up", found, what, deadline_s)


async def test_catch_up_members_change_and_a_dead_one_is_replaced(
    start: Start, kafka: str, topics: str, tmp_path: Path
) -> None:
    site = Deployment(start, tmp_path, kafka, topics)
    log = await site.metadata_log()
    for name, value in (
        ("archive_replication", "1"),
        ("archive_dead_after_s", str(DEAD_AFTER_S)),
        ("snapshot_epochs", "50"),
        ("truncate_behind", "1"),
    ):
        await change(log, name, value)
    one = await site.catch_up(1)
    await until_members(log, "cu-1")
    await fill(log, 120)
    await snapshots(log, 1)
    # A coordinator that reads the log's beginning ends when it is deleted, and is not restarted here.
    await site.begins_behind(120)
    await start("coordinator", catch_up_urls=site.urls)
    for number in (2, 3):
        await site.catch_up(number)
    await log.until("/v1/catch_up", lambda a: len(a["replicas"]) == 3, "three replicas")
    assert members(await log.get("/v1/catch_up")) == ["cu-1"], "others lack what was deleted"
    told = await site.stele("catch-up", "reconfigure", "2")
    assert "done at epoch" in told
    found = await until_members(log, "cu-1", "cu-2")
    assert found["archive_replication"] == "2"
    first = {each["replica_id"]: each["snapshots"][-1]["first_epoch"] for each in found["replicas"]}
    assert first["cu-1"] == first["cu-2"] == 1

    told = await site.stele("log", "snapshot")
    assert "is on cu-1 cu-2" in told
    told = await site.stele("log", "truncate", "--dry-run")
    assert "why not further" in told
    told = await site.stele("catch-up", "show")
    assert "members    2; archive_replication is 2" in told

    one.kill()
    await until_members(log, "cu-2", "cu-3", deadline_s=DEAD_AFTER_S + 60)
    answer = await log.get("/v1/requests?kind=reconfigure_catch_up")
    by = [row for row in answer["requests"] if row["actor"] == "coordinator"]
    assert by[-1]["reason"] == f"cu-1 has been silent for more than {DEAD_AFTER_S} s"
    await site.stele("catch-up", "forget", "cu-1")
    left = await log.get("/v1/catch_up")
    assert [each["replica_id"] for each in left["replicas"]] == ["cu-2", "cu-3"]
