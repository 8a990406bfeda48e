"""The archive on real processes: new epochs are archived, and the topic is truncated before them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deployment.commands import (
    change,
    command,
    fill,
    newest,
    snapshots,
    spans,
)
from tests.deployment.processes import Deployment

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SNAPSHOT_EPOCHS = 50


async def test_truncated_log_is_complete_for_all_readers(
    site: Deployment, kafka: str, topics: str
) -> None:
    """Earlier epochs, images and outcomes are unchanged. A new replica fetches all of them from the others."""
    log, one = await site.metadata_log(), await site.catch_up(1)
    two = await site.catch_up(2)
    await change(log, "snapshot_epochs", str(SNAPSHOT_EPOCHS))
    first = await command(log, "first", type="set_setting", name="early", value="1")
    refused = await command(log, "refused", type="leave", node_id="nobody")
    assert (first.status_code, refused.status_code) == (200, 409)
    await fill(log, 300)
    before = {
        epoch: [await log.get(f"/v1/epochs/{epoch}"), await log.get(f"/v1/state?epoch={epoch}")]
        for epoch in (3, 77, 190)
    }
    last = await newest(log)
    for replica in (one, two):
        await replica.until("/v1/archive", lambda a: spans(a)[-1][1] >= last, "all is archived")
        assert spans(await replica.get("/v1/archive"))[0][0] == 1
    await snapshots(log, 3)

    def hashes_of(state: Any) -> list[dict[int, str]]:
        return [
            {snapshot["epoch"]: snapshot["hash"] for snapshot in replica["snapshots"]}
            for replica in state["catch_up_replicas"]
        ]

    def announced(state: Any) -> bool:
        # Each keeps the newest three snapshots: both have the same once both are at the end.
        each = hashes_of(state)
        return len(each) == 2 and len({*each[0]} & {*each[1]}) >= 3

    state = await log.until("/v1/state", announced, "snapshots are announced by both")
    hashes = hashes_of(state)
    both = {*hashes[0]} & {*hashes[1]}
    assert all(hashes[0][epoch] == hashes[1][epoch] for epoch in both)

    await change(log, "truncate_behind", "1")
    assert await site.begins_behind(100) > 100
    for epoch, (found, image) in before.items():
        assert await log.get(f"/v1/epochs/{epoch}") == found
        assert await log.get(f"/v1/state?epoch={epoch}") == image

    log.kill()
    await log.start()
    await log.until("/healthz", lambda answer: answer["ok"], "metadata-log is well again")
    assert await newest(log) >= last
    for epoch, (found, image) in before.items():
        assert await log.get(f"/v1/epochs/{epoch}") == found
        assert await log.get(f"/v1/state?epoch={epoch}") == image
    again = await command(log, "first", type="set_setting", name="early", value="1")
    assert again.json() == first.json()
    told = await command(log, "refused", type="leave", node_id="nobody")
    assert told.json() == refused.json()
    other = await command(log, "first", type="set_setting", name="early", value="2")
    assert other.status_code == 422

    three = await site.catch_up(3)
    await three.until("/v1/archive", lambda a: spans(a)[:1] and spans(a)[0][0] == 1, "filled")
    one.kill()
    await one.start()
    last = await newest(log)
    for replica in (one, two, three):
        found = await replica.until(
            "/v1/archive", lambda a: spans(a)[-1][1] >= last, "all is archived again"
        )
        assert len(spans(found)) == 1
        assert found["damaged"] == []
    for how in ((), ("--copy",)):
        verified = await site.stele("log", "verify", *how, "--json")
        assert [each["verdict"]["flaws"] for each in verified] == [[], [], []]
        assert all(each["verdict"]["first_epoch"] == 1 for each in verified)
        assert all(each["verdict"]["snapshots"] and each["compared"] > 0 for each in verified)
        assert len({each["verdict"]["state_hash"] for each in verified}) <= 2, "one may be behind"
