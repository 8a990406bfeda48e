"""Truncation and cleanup on real processes: rows on the disk of an unavailable node must not return."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.agent.identity import STORE_FILE
from stele.domain.names import RequestStatus
from stele.domain.ring.partitioner import token_of
from stele.node.cells import StoredCell
from stele.node.store import SqliteStore
from tests.deployment.load import stopped
from tests.deployment.processes import HTTP_OK, Deployment, nodes_of
from tests.services.world import until

pytestmark = pytest.mark.broker

REST_S = 90
NOT_FOUND = 404


@pytest.fixture
async def four(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    names = ("n1", "n2", "n3", "n4")
    async with nodes_of(kafka, topics, tmp_path, *names, barrier_patience_s=2) as cluster:
        yield cluster


def status_of(cluster: Deployment, request_id: str) -> str:
    request = cluster.image.request(request_id)
    return "" if request is None else request.status


async def is_gone(cluster: Deployment, keys: list[str], via: list[str]) -> None:
    """Return whether no quorum has any of these keys, whichever node is asked."""
    for number, key in enumerate(keys):
        status, _ = await cluster.get(via[number % len(via)], key)
        assert status == NOT_FOUND, (via[number % len(via)], key)


async def test_truncated_rows_do_not_return_from_a_paused_node(
    four: Deployment,
) -> None:
    before = [*(await stopped(four.load(), 150)).acknowledged]
    n4 = four.nodes["n4"]
    os.kill(n4.process.pid, signal.SIGSTOP)
    asked = (await four.command(type="truncate", name="library"))["request_id"]
    await until(lambda: status_of(four, asked) == RequestStatus.RUNNING, "its beginning", REST_S)
    via = ["n1", "n2", "n3"]
    await is_gone(four, before, via)
    after = await stopped(four.load(), 60)
    assert status_of(four, asked) == RequestStatus.RUNNING, "n4 has not reported"
    n4.kill()
    await n4.start()
    assert await four.ended(asked) == RequestStatus.DONE
    assert await four.keys("n4") <= len(after.acknowledged)

    await four.start_node("n5")
    await four.normal("n5")
    await is_gone(four, before, [*via, "n4", "n5"])
    await after.is_read([*via, "n4", "n5"])


async def test_cleanup_deletes_foreign_rows_and_waits_for_each_node(
    four: Deployment,
) -> None:
    clients = await stopped(four.load(), 80)
    n1 = four.nodes["n1"]
    n1.kill()
    placement = four.image.placement_of("library")
    assert placement is not None
    keys = [f"stray-{number}".encode() for number in range(2000)]
    stray = [key for key in keys if "n1" not in placement.row_for(token_of(key)).writes]
    store = SqliteStore(four.folder / "n1" / STORE_FILE)
    had = (await store.size()).keys
    await store.write(
        [StoredCell(four.keyspace_id(), token_of(k), k, 1, False, b"x") for k in stray]
    )
    await store.close()

    asked = (await four.command(type="cleanup"))["request_id"]
    await until(lambda: status_of(four, asked) == RequestStatus.RUNNING, "its beginning", REST_S)

    def awaited() -> tuple[str, ...]:
        request = four.image.request(asked)
        assert request is not None
        return request.awaited_nodes

    await until(lambda: awaited() == ("n1",), "the others' reports", REST_S)
    await asyncio.sleep(1)
    assert status_of(four, asked) == RequestStatus.RUNNING
    await n1.start()
    assert await four.ended(asked) == RequestStatus.DONE
    assert stray
    assert await four.keys("n1") == had
    await clients.is_read(["n1", "n2", "n3", "n4"])
    status, _ = await four.get("n1", stray[0].decode())
    assert status != HTTP_OK
