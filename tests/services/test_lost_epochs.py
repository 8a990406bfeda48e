"""A node on real processes whose log is recovered: first with all epochs, then without some."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from stele.runtime.service import EXIT_BAD_CONFIGURATION
from stele_harness.stack.ports import free_port
from tests.deployment.commands import command, newest, spans
from tests.deployment.process import Service
from tests.deployment.processes import Deployment
from tests.polling import until
from tests.services.test_recover import replace_topic

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEY = "/v1/data/library/k"


async def kill_all(*running: Service) -> None:
    """Kill all of them at once, as by a power failure."""
    for service in running:
        service.kill()
    for service in running:
        await asyncio.to_thread(service.process.wait, 150)


async def archived(replica: Service, last: int) -> None:
    def has_it(answer: Any) -> bool:
        return bool(spans(answer)) and spans(answer)[-1][1] >= last

    await replica.until("/v1/archive", has_it, f"epoch {last} to be archived")


async def recovered(site: Deployment, dead: list[Service], *options: str) -> dict[str, Any]:
    """Empty the topic while these processes are down, and recover the log from the archive folder."""
    await replace_topic(site, [])
    replica = dead[-1]
    await replica.start()
    await replica.until("/v1/archive", lambda answer: answer["trouble"], "the loss to be noticed")
    answer: dict[str, Any] = await site.stele(
        "recover", "--reason", "the power failed", "--no-wait", "--json", *options
    )
    await until(
        lambda: replica.process.poll() is not None, "the archive to end, to begin anew", 150
    )
    await replica.start()
    for service in dead[:-1]:
        await service.start()
    log = dead[0]
    await log.until("/healthz", lambda a: a["ok"] and a["epoch"] >= answer["epoch"], "well again")
    return answer


async def check_restarted_node_reports_its_promise(
    site: Deployment, replica: Service, node: Service, acknowledged: int
) -> None:
    """Check that a node that has read nothing reports its promise, which the archive does not reach."""
    await replace_topic(site, [])
    await replica.start()
    await node.start()
    refused = await site.stele("recover", "--dry-run", *site.without(2, 3), fails=True)
    assert f"({node.url} has read epoch {acknowledged})" in refused
    answer = await site.stele("recover", "--dry-run", "--json", "--take", "cu-1")
    assert answer["choice"]["known_epoch"] == acknowledged > answer["choice"]["epoch"]
    assert node.url in answer["silent"]
    await kill_all(replica)


async def truncated(log: Service, name: str) -> None:
    """Truncate the keyspace, which needs one more version."""
    asked = await command(log, name, type="truncate", name="library")
    assert asked.status_code == 200, asked.text
    request_id = asked.json()["request_id"]

    def done(answer: Any) -> bool:
        return bool(answer["request"]["status"] == "done")

    await log.until(f"/v1/requests/{request_id}", done, "the truncation")


async def test_node_follows_a_recovered_log_unless_it_acknowledged_a_lost_epoch(
    site: Deployment, tmp_path: Path
) -> None:
    log, replica = await site.metadata_log(), await site.catch_up(1)
    more: dict[str, object] = {"catch_up_urls": site.urls}
    coordinator = await site.start("coordinator", "co-1", **more)
    folder = tmp_path / "n1"
    more |= {"data_dir": folder, "http_port": free_port()}  # the node keeps its address in the log
    node = await site.start("node", "n1", node_id="n1", num_tokens=4, **more)
    await node.until("/v1/node", lambda a: a["state"] == "normal", "n1 to be a member", 60)
    made = await command(log, type="create_keyspace", name="library", replication={"dc1": 1})
    assert made.status_code == 200, made.text
    await node.until("/v1/node", lambda a: a["epoch"] >= made.json()["epoch"], "the keyspace")
    async with httpx.AsyncClient(timeout=240) as client:
        assert (await client.put(node.url + KEY, content=b"v")).status_code == 200

        # Nothing is lost: the archive has every epoch that the node acknowledged.
        old = json.loads((folder / "node.json").read_text())["log_id"]
        await archived(replica, await newest(log))
        await kill_all(node, log, coordinator, replica)
        first = await recovered(site, [log, coordinator, replica], *site.without(2, 3))
        assert first["log_id"] > old
        await node.start()
        await node.until("/healthz", lambda a: a["ok"] and a["epoch"] >= first["epoch"], "n1 well")
        found = await client.get(node.url + KEY)
        assert (found.status_code, found.content) == (200, b"v")
        identity = json.loads((folder / "node.json").read_text())
        assert (identity["log_id"], identity["accepted_losses"]) == (first["log_id"], [])

        # The log continues with versions above any that may be lost. Then the archive misses some of them.
        await truncated(log, "once")
        assert (await node.get("/v1/node"))["version"] > 1_000_000
        await archived(replica, await newest(log))
        await kill_all(replica)
        await truncated(log, "twice")
        await kill_all(node, log, coordinator)
        acknowledged = json.loads((folder / "node.json").read_text())["acknowledged"]["epoch"]
        await check_restarted_node_reports_its_promise(site, replica, node, acknowledged)
        second = await recovered(site, [log, coordinator, replica], "--take", "cu-1")
        assert second["last_epoch"] < acknowledged
        await until(lambda: node.process.poll() is not None, "n1 to begin anew", 60)
        assert node.process.poll() == 0
        with contextlib.suppress(
            AssertionError
        ):  # the process may end before it prints its address
            await node.start()
        await until(lambda: node.process.poll() is not None, "n1 to give up", 150)
        assert node.process.poll() == EXIT_BAD_CONFIGURATION
        assert f"STELE_ACCEPT_LOST_EPOCHS={first['log_id']}" in node.process.tail()
        await node.restart(STELE_ACCEPT_LOST_EPOCHS=first["log_id"])
        await node.until("/healthz", lambda a: a["ok"] and a["epoch"] >= second["epoch"], "n1 well")
        assert (await client.put(node.url + KEY, content=b"w")).status_code == 200
    (loss,) = json.loads((folder / "node.json").read_text())["accepted_losses"]
    assert (loss["log_id"], loss["epoch"]) == (first["log_id"], acknowledged)
    assert loss["kept_epoch"] == second["last_epoch"]
