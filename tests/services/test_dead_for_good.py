"""Nodes that are killed and never return, under load: one is removed, one is replaced at its address."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from stele.domain.names import NodeState, RequestStatus
from tests.deployment.load import running
from tests.deployment.process import PLAIN_HTTP
from tests.deployment.processes import HTTP_OK, Deployment, nodes_of
from tests.services.world import until

pytestmark = pytest.mark.broker

REST_S = 90


@pytest.fixture
async def four(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    names = ("n1", "n2", "n3", "n4")
    async with nodes_of(kafka, topics, tmp_path, *names, barrier_patience_s=3) as cluster:
        yield cluster


async def refusal(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=90, verify=PLAIN_HTTP) as http:
        answer = await http.get(f"{url}/v1/data/library/c0/1")
    assert answer.status_code != HTTP_OK, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_dead_nodes_are_removed_and_replaced_under_load_without_loss(
    four: Deployment,
) -> None:
    async with running(four.load(("n1", "n2"))) as clients:
        await clients.go_on(100)
        four.nodes["n4"].kill()
        asked = await four.command(type="remove", node_id="n4")
        await clients.go_on(50)
        assert await four.ended(asked["request_id"]) == RequestStatus.DONE
        assert four.node_state("n4") == NodeState.LEFT
        await clients.go_on(50)

        port = urlsplit(four.nodes["n3"].url).port
        four.nodes["n3"].kill()
        new = await four.start_node("n5", rack="r3", replace_node="n3", http_port=port)
        assert new.url == four.node_address("n3") == four.nodes["n3"].url
        await until(lambda: four.node_state("n5") == NodeState.NORMAL, "n5 to be normal", REST_S)
        await four.rest()
        assert four.node_state("n3") == NodeState.LEFT
        replaced = four.image.node("n5")
        assert replaced is not None and len(replaced.tokens) == 4
        clients.via = ["n1", "n5"]
        await clients.go_on(50)
    assert {r.status for r in four.image.requests.requests.values()} == {RequestStatus.DONE}
    await clients.is_read(["n1", "n2", "n5"])
    assert await four.keys("n5") >= len(clients.acknowledged)

    n4 = four.nodes["n4"]
    await n4.start()

    def knows(health: dict[str, Any]) -> bool:
        return not health["ok"] and asked["request_id"] in health["reason"]

    await n4.until("/healthz", knows, "n4 to know that it was removed")
    shown = await n4.get("/v1/node")
    assert shown["state"] == NodeState.LEFT
    assert f"has left the cluster (request {asked['request_id']}, remove" in shown["reason"]
    assert "delete it" in shown["reason"]
    await until(lambda: "serves no data any more" in n4.process.tail(), "its log to say so")
    assert n4.process.poll() is None, "a supervisor would start it again for ever"
    assert (await refusal(n4.url))["code"] == "node_left"
    status, body = await four.put("n4", "k", b"v")
    assert (status, body["code"]) == (503, "node_left")


async def test_excluded_node_that_is_still_alive_serves_nothing(
    four: Deployment,
) -> None:
    n4 = four.nodes["n4"]
    os.kill(n4.process.pid, signal.SIGSTOP)
    asked = await four.command(type="exclude", node_ids=["n4"])
    assert await four.ended(asked["request_id"]) == RequestStatus.DONE
    os.kill(n4.process.pid, signal.SIGCONT)

    def is_told(health: dict[str, Any]) -> bool:
        return not health["ok"] and "declared dead" in health["reason"]

    await n4.until("/healthz", is_told, "n4 to know that it is excluded")
    assert (await refusal(n4.url))["code"] == "node_excluded"
    async with running(four.load()) as clients:
        await clients.go_on(50)
        await four.start_node("n5")
        await until(lambda: four.node_state("n5") == NodeState.NORMAL, "n5 to join", REST_S)
        asked = await four.command(type="remove", node_id="n4")
        assert await four.ended(asked["request_id"]) == RequestStatus.DONE
        await clients.go_on(50)
    await clients.is_read(["n1", "n2", "n3", "n5"])
