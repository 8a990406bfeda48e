"""The node over HTTP before its gate is open."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from stele.node.admission import Advertised
from stele.node.gate import Closed
from stele.node.http import NodeHttp
from stele.node.wire import BATCH_PATH, MEASURE_PATH, PAGE_PATH, encode
from stele.runtime.http import Health, build_app

DATA = "/v1/data/library/k"


class ShutGate:
    def __init__(self, code: str) -> None:
        self.code = code

    def closed(self) -> Closed:
        return Closed(self.code, "Not yet.")


@pytest.mark.parametrize("code", ["catching_up", "not_admitted"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", DATA),
        ("PUT", DATA),
        ("DELETE", DATA),
        ("POST", BATCH_PATH),
        ("POST", PAGE_PATH),
        ("POST", MEASURE_PATH),
    ],
)
async def test_nothing_is_served_before_the_gate_opens(code: str, method: str, path: str) -> None:
    """Nothing behind the handlers is there: whatever they touched would fail otherwise."""
    nothing: Any = None
    gate: Any = ShutGate(code)
    advertised = Advertised(address="http://n1", dc="dc1", rack="r1", num_tokens=4)
    handlers = NodeHttp("demo", advertised, gate, nothing, nothing, nothing, nothing)
    app = build_app("node", handlers.routes(), lambda: Health(ok=True))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://n1") as client:
        answer = await client.request(method, path, content=encode([]))
    assert (answer.status_code, answer.json()["code"]) == (503, code)
    assert "Ask another node" in answer.json()["hint"]
