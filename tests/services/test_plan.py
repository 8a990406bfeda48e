"""Plans on real processes: they match the operation that follows, and write nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stele.domain.image import Image
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestStatus
from stele.domain.registry import KNOWN_FEATURES
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from stele.words.explain import explain
from tests.deployment.processes import HTTP_OK, Deployment, nodes_of
from tests.polling import until

pytestmark = pytest.mark.broker

REST_S = 240
POLL_S = 0.2
NOT_YET = 503
VALUES = 200
VALUE_BYTES = 20_000


@pytest.fixture
async def three(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Start three nodes with data, and a coordinator that has listened long enough to know which are up."""
    settings = {"heartbeat_timeout_s": 2, "barrier_patience_s": 1}
    async with nodes_of(kafka, topics, tmp_path, "n1", "n2", "n3", **settings) as cluster:
        for number in range(VALUES):
            status, _ = await cluster.put("n1", f"k{number}", os.urandom(VALUE_BYTES))
            assert status == HTTP_OK
        yield cluster


async def post(cluster: Deployment, content: bytes) -> httpx.Response:
    """Return the answer, once the coordinator knows which nodes are up."""
    async with httpx.AsyncClient(timeout=240) as http, asyncio.timeout(REST_S):
        while True:
            answer = await http.post(f"{cluster.coordinator.url}/v1/plan", content=content)
            if answer.status_code != NOT_YET:
                return answer
            await asyncio.sleep(POLL_S)


async def plan(cluster: Deployment, command: dict[str, Any]) -> PlanAnswer:
    answer = await post(cluster, msgspec.json.encode({"command": command}))
    assert answer.status_code == HTTP_OK, answer.text
    return msgspec.json.decode(answer.content, type=PlanAnswer)


def held(image: Image) -> dict[str, float]:
    found: dict[str, float] = {}
    placement = image.placement_of("library")
    assert placement is not None
    for row in placement.rows:
        for node_id in row.reads:
            width = (row.end - row.start) % 2**64 or 2**64
            found[node_id] = found.get(node_id, 0) + width / 2**64
    return found


async def joining(cluster: Deployment, node_id: str) -> dict[str, Any]:
    """Return the join command of a running node."""
    node = await cluster.start_node(node_id, join="no", rack="r1")
    known = await node.get("/v1/node")
    names = ("node_id", "cluster", "address", "dc", "rack", "num_tokens", "host_id")
    features = sorted(KNOWN_FEATURES)
    return {"type": "join", "supported_features": features, **{name: known[name] for name in names}}


async def test_plan_of_a_join_matches_the_join_and_writes_nothing(
    three: Deployment,
) -> None:
    command = await joining(three, "n4")
    position = await three.coordinator.get("/v1/position")
    found = await plan(three, command)
    assert found.verdict is PlanVerdict.STARTS, found.wait
    assert found.plan.alone
    assert await three.coordinator.get("/v1/position") == position
    assert three.image.node("n4") is None
    opened: list[Transition] = []
    three.follower.listen(lambda image, _: opened.extend(image.topology.open()))
    asked = await three.command(**command)
    assert await three.ended(asked["request_id"]) is RequestStatus.DONE
    mine = [t for t in opened if asked["request_id"] in t.request_ids()]
    states = list(dict.fromkeys(t.state for t in mine))
    assert [step.state for step in found.plan.steps] == states
    assert {name: len(p.rows) for name, p in mine[0].plans.items()} == {
        placement.placement: placement.changing for placement in found.plan.placements
    }
    (placement,) = found.plan.placements
    after = {name: share.after for name, share in placement.nodes.items()}
    assert after == pytest.approx(held(three.image))
    (stream,) = found.streams
    await three.nodes["n4"].until("/v1/node", lambda n: n["bytes"], "its bytes to be counted")
    received = (await three.nodes["n4"].get("/v1/node"))["bytes"]
    assert stream.size_bytes == pytest.approx(received, rel=0.4)


async def test_plan_of_a_rejected_command_and_invalid_bodies_have_codes(
    three: Deployment,
) -> None:
    epoch = three.image.epoch
    answer = await post(three, b'{"command": {"type": "leave", "node_id": "n1"}}')
    assert (answer.status_code, answer.json()["code"]) == (409, "too_few_nodes")
    assert "Add a node to that dc first" in answer.json()["hint"]
    for content, status, code in (
        (b"{", 400, "malformed_json"),
        (b'{"command": {"type": "noop"}}', 400, "invalid_request"),
        (b'{"command": {"type": "leave", "node_id": "n1"}, "log_id": "ab"}', 412, "other_log"),
        (b" " * 100_000, 413, "body_too_large"),
    ):
        answer = await post(three, content)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert answer.json()["hint"]
    assert three.image.epoch == epoch


async def test_stalled_source_is_named_and_cancel_restores_the_placements(
    three: Deployment,
) -> None:
    before = held(three.image)
    command = await joining(three, "n4")
    found = await plan(three, command)
    ((source,),) = {gain.sources for gain in found.plan.gains}
    hung = three.nodes[source].process.pid
    asked = await three.command(**command)
    request_id = asked["request_id"]

    def moving() -> Transition | None:
        transition = three.image.topology.of_request(request_id)
        return transition if transition is not None and transition.session else None

    await until(moving, "the session")
    os.kill(hung, signal.SIGSTOP)  # before all nodes have the version with the session
    try:
        answer = await three.coordinator.until(
            "/v1/progress", lambda shown: causes(shown).get("stream") == source, "the cause", 40
        )
        request = three.image.request(request_id)
        assert request is not None
        line, *_, advice = explain(request, moving(), msgspec.convert(answer, Progress))
        assert f"stream by n4; the cause is {source}: is down, and gives n4 no data" in line
        assert line.endswith("no setting ends this wait")
        assert f"start {source}" in advice and f"`stele cancel {request_id}`" in advice
        code, said = await cancel(three, request_id)
    finally:
        os.kill(hung, signal.SIGCONT)
    assert code == 0, said
    assert "the placements are as before: " in said.splitlines()[-1]
    assert await three.ended(request_id) is RequestStatus.CANCELLED
    assert held(three.image) == before


async def cancel(cluster: Deployment, request_id: str) -> tuple[int, str]:
    """Return the exit status and the output of ``stele cancel``."""
    arguments = ("-m", "stele.cli", "cancel", request_id, "--url", cluster.log_url)
    coordinator = {"STELE_COORDINATOR_URLS": cluster.coordinator.url}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **coordinator},
    )
    async with asyncio.timeout(REST_S):
        said, _ = await child.communicate()
    return child.returncode or 0, said.decode()


def causes(progress: dict[str, Any]) -> dict[str, str]:
    return {wait["kind"]: wait["cause"] for wait in progress["waits"]}
