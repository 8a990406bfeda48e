"""Three node processes with a real broker, metadata log and coordinator: refusals, large values, a drop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.node.settings import MAX_KEY_BYTES, MAX_VALUE_BYTES
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from tests.deployment.processes import (
    HTTP_OK,
    KEYSPACE,
    Deployment,
    nodes_of,
)
from tests.polling import until
from tests.services.world import settle

pytestmark = pytest.mark.broker


@pytest.fixture
async def live(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with nodes_of(kafka, topics, tmp_path, "n1", "n2", "n3") as cluster:
        yield cluster


async def test_node_that_lost_its_disk_is_refused_and_serves_nothing(live: Deployment) -> None:
    """The node would answer quorum reads without rows that it acknowledged."""
    assert (await live.put("n1", "k", b"precious"))[0] == HTTP_OK
    node, folder = live.nodes["n3"], live.folder / "n3"
    host_id = (await node.get("/v1/node"))["host_id"]
    row = live.image.node("n3")
    assert row is not None and row.host_id == host_id != ""

    node.kill()
    kept = folder.rename(folder.with_name("n3-kept"))
    with contextlib.suppress(AssertionError):  # the process may end before its address is read
        await node.start()
    served = await live.replica_statuses("n3")
    assert HTTP_OK not in served, served
    await until(lambda: node.process.poll() is not None, "the end of n3")
    assert node.process.poll() == EXIT_BAD_CONFIGURATION
    assert "host_id_mismatch" in node.process.tail()

    shutil.rmtree(folder)
    kept.rename(folder)
    (folder / "store.sqlite").rename(folder / "elsewhere")
    with pytest.raises(
        AssertionError, match=r"store.sqlite is missing; .*put its own data directory back"
    ):
        await node.start()
    assert node.process.poll() == EXIT_BAD_CONFIGURATION

    (folder / "elsewhere").rename(folder / "store.sqlite")
    await node.start()
    live.nodes["n2"].kill()
    await node.until("/healthz", lambda h: h["ok"], "n3 with its own disk to be well")
    url = node.url
    await until(lambda: live.node_address("n3") == url, "n3's new address in the log")
    assert await live.get("n3", "k") == (HTTP_OK, b"precious")


async def test_large_values_are_stored_and_too_large_ones_refused(live: Deployment) -> None:
    value = os.urandom(8 * 1024 * 1024)
    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(live.put("n1", f"large/{number}", value))
    for node_id in live.nodes:
        assert await live.get(node_id, "large/2") == (HTTP_OK, value)
    status, body = await live.put("n1", "larger", bytes(MAX_VALUE_BYTES + 1))
    assert (status, body["code"]) == (413, "body_too_large")
    status, body = await live.put("n1", "k" * (MAX_KEY_BYTES + 1), b"")
    assert (status, body["code"]) == (400, "bad_key")


async def test_recreated_keyspace_has_no_rows_of_the_old_one(
    live: Deployment,
) -> None:
    old = live.keyspace_id()
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        assert (await live.put("n1", key, b"old"))[0] == HTTP_OK
    await live.command(type="drop_keyspace", name=KEYSPACE)
    await until(lambda: live.image.schema.named(KEYSPACE) is None, "the drop")
    assert (await live.get("n2", "k0"))[0] == 404
    await live.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 1})
    await until(lambda: live.image.schema.named(KEYSPACE), "the new keyspace")
    assert live.keyspace_id() != old
    for number, key in enumerate(keys):
        assert (await live.get(f"n{1 + number % 3}", key))[0] == 404, key
    await until(lambda: settle(live.image), "the cleanup")
    for service in live.nodes.values():
        await service.until("/v1/node", lambda n: n["keys"] == 0, "the old rows to be deleted")
    assert (await live.put("n1", "k0", b"new"))[0] == HTTP_OK
    assert await live.get("n3", "k0") == (HTTP_OK, b"new")
