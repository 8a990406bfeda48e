"""The node over HTTP: before its gate is open, and with invalid requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from stele.agent.admission import Advertised
from stele.agent.gate import Closed
from stele.domain.image import EMPTY, Image
from stele.domain.model.membership import MembershipImage
from stele.domain.names import NodeState
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.routed import HOST
from stele.node.http import NodeHttp
from stele.node.wire import (
    BACKUP_PATH,
    BATCH_PATH,
    DIGESTS_PATH,
    LOG_HEADER,
    MEASURE_PATH,
    PAGE_PATH,
    REPLICA_HEADER,
    Read,
    ReadMode,
    decode_ops,
    encode,
)
from stele.runtime.http import Health, build_app
from tests.docs.pages import REPOSITORY
from tests.domain.history import three_nodes

DATA = "/v1/data/library/k"
NESTED = b"\x91" * 100_000
"""Nested lists, deeper than any stack."""


class ShutGate:
    def __init__(self, code: str) -> None:
        self.code = code

    def closed(self) -> Closed:
        return Closed(self.code, "Not yet.")


class OpenGate:
    def closed(self) -> None:
        return None


def left_of(node_id: str) -> Image:
    """Return a log that was read only up to the node's departure."""
    history, _ = three_nodes()
    row = history.image.node(node_id)
    assert row is not None
    left = msgspec.structs.replace(row, state=NodeState.LEFT)
    nodes = EMPTY.membership.nodes.set(node_id, left)
    return msgspec.structs.replace(EMPTY, membership=MembershipImage(nodes))


def node_behind(gate: Any, image: Image = EMPTY) -> httpx.AsyncClient:
    """Return a client of a node that has only its handlers, this gate and the read part of the log."""
    nothing: Any = None
    replica: Any = SimpleNamespace(
        scan=nothing, serve=nothing, digests=nothing, give=nothing, judge=nothing
    )
    agent: Any = SimpleNamespace(image=image, node_id="n1", host_id="host-1")
    advertised = Advertised(address="http://n1", dc="dc1", rack="r1", num_tokens=4)
    handlers = NodeHttp(
        "demo", advertised, gate, agent, nothing, replica, replica, nothing, nothing
    )
    app = build_app("node", handlers.routes(), lambda: Health(ok=True))
    transport, meant = httpx.ASGITransport(app=app), {REPLICA_HEADER: "n1"}
    return httpx.AsyncClient(transport=transport, base_url="http://n1", headers=meant)


@pytest.mark.parametrize("code", ["catching_up", "not_admitted"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", DATA),
        ("PUT", DATA),
        ("DELETE", DATA),
        ("GET", "/v1/cdc/changes?table=library.books"),
        ("GET", "/v1/cdc/streams?table=library.books"),
        ("POST", BATCH_PATH),
        ("POST", PAGE_PATH),
        ("POST", MEASURE_PATH),
        ("POST", DIGESTS_PATH),
        ("POST", BACKUP_PATH),
    ],
)
async def test_requests_before_the_gate_opens_are_503(code: str, method: str, path: str) -> None:
    """The handlers have no node behind them. Any use of it would fail."""
    async with node_behind(ShutGate(code)) as client:
        answer = await client.request(method, path, content=encode([]))
    assert (answer.status_code, answer.json()["code"]) == (503, code)
    assert "Ask another node" in answer.json()["hint"]


@pytest.mark.parametrize(
    ("shut", "code"),
    [("catching_up", "node_left"), ("not_admitted", "not_admitted"), ("", "node_left")],
)
async def test_left_node_answers_node_left_before_the_whole_log_is_read(
    shut: str, code: str
) -> None:
    """A node that has left cannot return. A different log takes precedence."""
    gate = ShutGate(shut) if shut else OpenGate()
    async with node_behind(gate, left_of("n1")) as client:
        answer = await client.get(DATA)
    assert (answer.status_code, answer.json()["code"]) == (503, code)


@pytest.mark.parametrize("path", [BACKUP_PATH, BATCH_PATH, PAGE_PATH, MEASURE_PATH, DIGESTS_PATH])
@pytest.mark.parametrize(
    ("meant", "status", "code"),
    [
        ({REPLICA_HEADER: ""}, 400, "invalid_request"),
        ({REPLICA_HEADER: "n2"}, 421, "other_node"),
        ({REPLICA_HEADER: "n1", HOST: "host-2"}, 421, "other_node"),
    ],
)
async def test_call_must_name_its_target_replica(
    path: str, meant: dict[str, str], status: int, code: str
) -> None:
    """Another node may have come to its address, or other data under its name."""
    async with node_behind(OpenGate()) as client:
        answer = await client.post(path, content=encode([]), headers=meant)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("key", ["%ff", "a/%ff", "%c3"])
async def test_key_with_invalid_utf_8_is_refused(key: str) -> None:
    """Otherwise all such keys would be the one with the replacement character."""
    async with node_behind(OpenGate()) as client:
        answer = await client.get(f"/v1/data/library/{key}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_key_encoding")


@pytest.mark.parametrize("path", [BACKUP_PATH, BATCH_PATH, PAGE_PATH, MEASURE_PATH, DIGESTS_PATH])
async def test_call_of_a_node_that_follows_another_log_is_refused(path: str) -> None:
    """The caller has not read the recovery: its versions are of lost epochs."""
    async with node_behind(OpenGate()) as client:
        answer = await client.post(path, content=encode([]), headers={LOG_HEADER: "ab" * 16})
    assert (answer.status_code, answer.json()["code"]) == (409, "other_log")
    assert "recovered" in answer.json()["hint"]


@pytest.mark.parametrize("path", [BACKUP_PATH, BATCH_PATH, PAGE_PATH, MEASURE_PATH, DIGESTS_PATH])
@pytest.mark.parametrize(
    "body", [b"", b"{}", b"\xc1", NESTED, b"\x96\x01\xa0\x90\xc0\x00" + NESTED]
)
async def test_malformed_message_between_nodes_is_refused(path: str, body: bytes) -> None:
    async with node_behind(OpenGate()) as client:
        answer = await client.post(path, content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert "nodes of the same release" in answer.json()["hint"]


@pytest.mark.parametrize("token", [MIN_TOKEN, MAX_TOKEN + 1])
async def test_operation_with_an_invalid_token_is_refused(token: int) -> None:
    """No span contains it, so its row would never be streamed."""
    read = Read(
        version=1, epoch=1, coordinating="n2", data_id="d", token=token, key=b"k", mode=ReadMode.CELL
    )  # fmt: skip
    async with node_behind(OpenGate()) as client:
        answer = await client.post(BATCH_PATH, content=encode([read]))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert "Expected `int`" in answer.json()["message"]
    assert decode_ops(encode([replace(read, token=MIN_TOKEN + 1)]))


async def test_trial_node_serves_only_the_data_paths_of_the_router_guide() -> None:
    page = " ".join((REPOSITORY / "docs" / "guides" / "route_requests.md").read_text().split())
    assert "take `/v1/values/KEY`" in page and "theirs is `/v1/data/KEYSPACE/KEY`" in page
    async with node_behind(ShutGate("catching_up")) as client:
        found = [(await client.get(path)).status_code for path in ("/v1/values/k", DATA)]
    assert found == [404, 503], "503: it is there, and not served yet"
