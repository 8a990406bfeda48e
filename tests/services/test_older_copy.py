"""A node on real processes whose data directory is replaced by an older copy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path

import httpx
import pytest

from stele.agent.identity import AHEAD, read
from stele.agent.older_copy import SETTING
from stele.log.brokers import Brokers
from stele.log.codec import decode_ack
from stele.log.ends import newest_of
from stele.log.flows import flow_topic
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from tests.deployment.commands import command
from tests.deployment.process import Service
from tests.deployment.processes import Deployment
from tests.polling import until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEY = "/v1/data/library/k"


async def serves(node: Service) -> None:
    await node.until("/healthz", lambda answer: answer["ok"], "n1 to be well")
    await node.until("/v1/node", lambda answer: answer["state"] == "normal", "n1 to serve", 60)


async def ends(node: Service) -> str:
    """Wait for the end of the process, and return its output."""
    with contextlib.suppress(AssertionError):  # the process may end before it prints its address
        await node.start()
    await until(lambda: node.process.poll() is not None, "n1 to give up", 150)
    assert node.process.poll() == EXIT_BAD_CONFIGURATION
    return node.process.tail()


async def killed(node: Service) -> None:
    node.kill()
    await asyncio.to_thread(node.process.wait, 150)


async def acked_on_brokers(site: Deployment, sequence: int) -> None:
    """Wait until the brokers have an ack with a greater sequence number."""
    topic = flow_topic(site.cluster, "acks")

    def is_later(value: bytes) -> bool:
        return decode_ack(value).sequence > sequence

    brokers = Brokers(site.kafka)
    await until(lambda: newest_of(brokers, topic, "n1", is_later), f"ack {sequence + 1}", 60)


def restore_copy(copy: Path, folder: Path) -> Path:
    """Replace the folder by the copy. Return where the folder was moved."""
    aside = folder.with_name("newest")
    folder.rename(aside)
    shutil.copytree(copy, folder)
    return aside


async def test_node_with_an_older_copy_serves_nothing_until_it_is_accepted(
    site: Deployment, tmp_path: Path
) -> None:
    log, _ = await site.metadata_log(), await site.start("coordinator", "co-1")
    folder, copy = tmp_path / "n1", tmp_path / "copy"
    node = await site.start(
        "node", "n1", node_id="n1", data_dir=folder, num_tokens=4, heartbeat_interval_s=0.05
    )
    await serves(node)
    made = await command(log, type="create_keyspace", name="library", replication={"dc1": 1})
    assert made.status_code == 200, made.text
    await node.until("/v1/node", lambda a: a["epoch"] >= made.json()["epoch"], "the keyspace")
    async with httpx.AsyncClient(timeout=240) as client:
        assert (await client.put(node.url + KEY, content=b"old")).status_code == 200
        await killed(node)
        shutil.copytree(folder, copy)
        counted = read(folder).counted
        await node.start()
        await serves(node)
        assert (await client.put(node.url + KEY, content=b"new")).status_code == 200
        await acked_on_brokers(site, counted)
        await killed(node)

        # The copy is from the previous start.
        newest = restore_copy(copy, folder)
        assert "older_copy" in await ends(node)
        shutil.rmtree(folder)
        newest.rename(folder)
        await node.start()
        await serves(node)
        assert (await client.get(node.url + KEY)).content == b"new"

        # The copy is from this start, made while the node runs.
        shutil.rmtree(copy)
        counted = read(folder).counted
        shutil.copytree(folder, copy)
        assert (await client.put(node.url + KEY, content=b"newer")).status_code == 200
        await acked_on_brokers(site, counted + AHEAD)
        await killed(node)
        newest = restore_copy(copy, folder)
        said = await ends(node)
        told = said.rpartition(f"{SETTING}=")[2].split(",")[0]
        assert int(told) > counted
        await node.restart(**{SETTING: told})
        await serves(node)
        assert (await client.get(node.url + KEY)).content == b"new"
        (accepted,) = json.loads((folder / "node.json").read_text())["accepted_copies"]
        assert accepted == {"counted": read(copy).counted, "told": int(told)}
        await killed(node)
        await node.start()
        await serves(node)
        await acked_on_brokers(site, read(newest).counted)
        await killed(node)

        # The original directory is the older one now.
        shutil.rmtree(folder)
        newest.rename(folder)
        assert "older_copy" in await ends(node)
