"""Only valid answers of the tablet-balancer reach the page."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from stele.console.reads import BALANCER, Reads
from stele.console.throughput import Throughput
from stele.runtime.answers.tablet_balancer import LoadHistory
from stele.runtime.http import Health, build_app
from stele.runtime.transport import HttpReply


class Balancer:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def ask(self, service: str, path: str, params: object) -> HttpReply:
        return HttpReply(200, self._body)


async def asked(body: bytes, path: str) -> httpx.Response:
    reads = Reads(None, Balancer(body), Throughput(), {})  # type: ignore[arg-type]
    app = build_app("console", reads.routes(), lambda: Health(ok=True))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://console") as client:
        return await client.get(path)


@pytest.mark.parametrize("path", BALANCER)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[1,2,3]", b"null", b'{"nodes": 3}', b"\0" * 99])
async def test_invalid_answer_of_the_balancer_is_502(path: str, body: bytes) -> None:
    answer = await asked(body, path)
    assert answer.status_code == 502
    assert answer.json()["code"] == "not_understood"


async def test_valid_answer_of_the_balancer_is_forwarded_unchanged() -> None:
    body = msgspec.json.encode(LoadHistory(span_ms=1, every_ms=1, samples=()))
    assert (await asked(body, "/api/balance/history")).content == body
