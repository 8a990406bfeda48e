"""Nodes that are killed and never come back, under load: one is removed, one replaced at its own address."""

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
from tests.services.nodes import HTTP_OK, Cluster, address_of, cluster_of, load, state_of
from tests.services.processes import PLAIN_HTTP
from tests.services.world import settle, until

pytestmark = pytest.mark.broker

REST_S = 90


@pytest.fixture
async def four(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    names = ("n1", "n2", "n3", "n4")
    async with cluster_of(kafka, topics, tmp_path, *names, barrier_patience_s=3) as cluster:
        yield cluster


async def ended(cluster: Cluster, request_id: str) -> str:
    """How a request ended."""

    def is_over() -> bool:
        request = cluster.image.request(request_id)
        return request is not None and request.finished_epoch > 0 and settle(cluster.image)

    await until(is_over, f"the end of {request_id}", REST_S)
    request = cluster.image.request(request_id)
    assert request is not None
    return request.status


async def refusal(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=90, verify=PLAIN_HTTP) as http:
        answer = await http.get(f"{url}/v1/data/library/c0/1")
    assert answer.status_code != HTTP_OK, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_dead_are_removed_and_replaced_under_load_and_nothing_is_lost(
    four: Cluster,
) -> None:
    async with load(four) as clients:
        clients.via = ["n1", "n2"]
        await clients.go_on(100)
        four.nodes["n4"].kill()
        asked = await four.command(type="remove", node_id="n4")
        await clients.go_on(50)
        assert await ended(four, asked["request_id"]) == RequestStatus.DONE
        assert state_of(four, "n4") == NodeState.LEFT
        await clients.go_on(50)

        port = urlsplit(four.nodes["n3"].url).port
        four.nodes["n3"].kill()
        new = await four.start_node("n5", rack="r3", replace_node="n3", http_port=port)
        assert new.url == address_of(four, "n3") == four.nodes["n3"].url
        await until(lambda: state_of(four, "n5") == NodeState.NORMAL, "n5 to be normal", REST_S)
        await until(lambda: settle(four.image), "rest", REST_S)
        assert state_of(four, "n3") == NodeState.LEFT
        replaced = four.image.node("n5")
        assert replaced is not None and len(replaced.tokens) == 4
        clients.via = ["n1", "n5"]
        await clients.go_on(50)
    assert {r.status for r in four.image.requests.requests.values()} == {RequestStatus.DONE}
    await clients.is_read(["n1", "n2", "n5"])
    assert await four.keys("n5") >= len(clients.acknowledged)

    await four.nodes["n4"].start()
    epoch = four.image.epoch
    await four.nodes["n4"].until("/v1/node", lambda node: node["epoch"] >= epoch, "n4 to know")
    assert (await refusal(four.nodes["n4"].url))["code"] == "node_left"


async def test_a_node_that_was_declared_dead_and_lives_serves_nothing_any_more(
    four: Cluster,
) -> None:
    n4 = four.nodes["n4"]
    os.kill(n4.process.pid, signal.SIGSTOP)
    asked = await four.command(type="exclude", node_ids=["n4"])
    assert await ended(four, asked["request_id"]) == RequestStatus.DONE
    os.kill(n4.process.pid, signal.SIGCONT)

    def is_told(health: dict[str, Any]) -> bool:
        return not health["ok"] and "declared dead" in health["reason"]

    await n4.until("/healthz", is_told, "n4 to know that it is excluded")
    assert (await refusal(n4.url))["code"] == "node_excluded"
    async with load(four) as clients:
        clients.via = ["n1", "n2", "n3"]
        await clients.go_on(50)
        await four.start_node("n5")
        await until(lambda: state_of(four, "n5") == NodeState.NORMAL, "n5 to join", REST_S)
        asked = await four.command(type="remove", node_id="n4")
        assert await ended(four, asked["request_id"]) == RequestStatus.DONE
        await clients.go_on(50)
    await clients.is_read(["n1", "n2", "n3", "n5"])


async def test_an_address_that_another_node_has_now_answers_for_that_one_alone(
    four: Cluster,
) -> None:
    url = four.nodes["n1"].url + "/v1/replica/batch"
    async with httpx.AsyncClient(timeout=90, verify=PLAIN_HTTP) as http:
        answer = await http.post(url, content=b"\x90", headers={"x-stele-replica": "n2"})
        assert (answer.status_code, answer.json()["code"]) == (421, "other_node")
        answer = await http.post(url, content=b"\x90", headers={"x-stele-replica": "n1"})
        assert answer.status_code == HTTP_OK
