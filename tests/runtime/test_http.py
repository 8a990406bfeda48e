"""HTTP basics: one shape of errors, health, metrics, and streams that end with the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
from confluent_kafka import KafkaError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stele.log import deliveries
from stele.runtime import http
from stele.runtime.http import (
    Health,
    HttpError,
    JsonResponse,
    StartFailed,
    bind,
    build_app,
    listening,
    read_json,
    serving,
)
from stele.runtime.settings import ConfigurationError, ServiceSettings

WELL = Health(ok=True, epoch=7, state_id="s7", lag_epochs=0)
LIMIT_BYTES = 1_000_000
NESTED = b'{"more":' + b"[" * 400_000 + b"]" * 400_000 + b"}"
"""JSON nested deeper than any stack, in an unknown field."""


class Ask(msgspec.Struct):
    tokens: int


async def ask(request: Request) -> Response:
    return JsonResponse(await read_json(request, Ask))


async def conflict(_: Request) -> Response:
    raise HttpError(409, "stale_term", "Term 3 is over.", hint="Read again.", details={"term": 4})


async def bug(_: Request) -> Response:
    raise ZeroDivisionError


ROUTES = [
    Route("/ask", ask, methods=["POST"]),
    Route("/conflict", conflict),
    Route("/bug", bug),
]


@asynccontextmanager
async def client(health: Health = WELL) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app("trial", ROUTES, lambda: health, max_body_bytes=LIMIT_BYTES)
    async with (
        serving(app, bind("127.0.0.1", 0)) as url,
        httpx.AsyncClient(base_url=url, timeout=240) as http,
    ):
        yield http


async def test_process_refused_by_kafka_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries._Process, "newest", ("", 0.0))
    async with client() as http:
        assert (await http.get("/healthz")).status_code == 200
        deliveries.Refusals()(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        answer = await http.get("/healthz")
    assert answer.status_code == 503
    health = msgspec.json.decode(answer.content, type=Health)
    assert not health.ok
    assert health.epoch == WELL.epoch
    assert "Refused by Kafka" in health.reason
    assert "docs/guides/secure.md" in health.reason


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nowhere", b"", 404, "not_found"),
        ("POST", "/ask/", b"", 404, "not_found"),
        ("DELETE", "/ask", b"", 405, "method_not_allowed"),
        ("POST", "/ask", b"{", 400, "malformed_json"),
        ("POST", "/ask", b"\xff", 400, "malformed_json"),
        ("POST", "/ask", NESTED, 400, "malformed_json"),
        ("POST", "/ask", b'{"tokens": "many"}', 400, "invalid_request"),
        ("POST", "/ask", b"x" * (LIMIT_BYTES + 1), 413, "body_too_large"),
        ("GET", "/conflict", b"", 409, "stale_term"),
        ("GET", "/bug", b"", 500, "internal"),
    ],
)
async def test_every_error_has_the_same_shape(
    method: str, path: str, body: bytes, status: int, code: str
) -> None:
    async with client() as http:
        answer = await http.request(method, path, content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()
    assert set(error) == {"code", "message", "hint", "details"}
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]


async def test_405_names_the_allowed_methods() -> None:
    async with client() as http:
        answer = await http.delete("/ask")
    assert answer.headers["allow"] == "POST"
    assert answer.json()["details"]["allowed"] == ["POST"]


async def test_body_of_unknown_length_is_limited() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * (LIMIT_BYTES // 10)

    async with client() as http:
        answer = await http.post("/ask", content=chunks())
    assert answer.status_code == 413
    assert answer.json()["details"]["limit_bytes"] == LIMIT_BYTES


async def test_healthz_has_the_position_or_503_with_a_reason() -> None:
    async with client() as http:
        answer = await http.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {
        "ok": True,
        "epoch": 7,
        "state_id": "s7",
        "lag_epochs": 0,
        "reason": "",
    }
    async with client(Health(ok=False, epoch=7, reason="the log does not answer")) as http:
        answer = await http.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "the log does not answer"


async def test_metrics_count_requests_by_handler_and_status() -> None:
    async with client() as http:
        await http.post("/ask", json={"tokens": 16})
        text = (await http.get("/metrics")).text
    assert 'stele_http_request_seconds_count{handler="ask",method="POST",status="200"}' in text
    assert "process_resident_memory_bytes" in text


async def test_an_open_stream_ends_when_the_server_stops() -> None:
    ended = asyncio.Event()

    async def stream(request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            yield b"first\n"
            await request.app.state.stopping.wait()
            ended.set()

        return StreamingResponse(lines())

    app = build_app("trial", [Route("/stream", stream)], lambda: WELL)
    async with httpx.AsyncClient(timeout=240) as http:
        async with serving(app, bind("127.0.0.1", 0)) as url:
            request = http.build_request("GET", f"{url}/stream")
            answer = await http.send(request, stream=True)
            lines = answer.aiter_lines()
            assert await anext(lines) == "first"
        assert ended.is_set()
        await answer.aclose()


async def test_failing_lifespan_fails_the_start() -> None:
    def open_disk() -> None:
        raise OSError("no disk")

    @asynccontextmanager
    async def broken(_: Starlette) -> AsyncIterator[None]:
        open_disk()
        yield

    app = build_app("trial", [], lambda: WELL, lifespan=broken)
    with pytest.raises(StartFailed):
        async with serving(app, bind("127.0.0.1", 0)):
            pass


def test_port_in_use_is_a_configuration_error_with_the_variable() -> None:
    taken = bind("127.0.0.1", 0)
    with taken, pytest.raises(ConfigurationError, match="STELE_HTTP_PORT"):
        bind("127.0.0.1", taken.getsockname()[1])


async def test_connections_have_tcp_nodelay() -> None:
    """Without TCP_NODELAY each answer after the first is delayed by 40 ms. Measuring that would be flaky."""
    delays = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        delays.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    async with await asyncio.start_server(connected, sock=listening):
        _, client_ = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(delays, 240)
        client_.close()


async def test_service_answers_503_until_it_serves_at_the_same_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "EARLY_S", 0.0)
    monkeypatch.setattr(deliveries._Process, "start_wait", "Kafka does not answer.")
    stop = asyncio.Event()
    async with (
        listening(ServiceSettings(instance_id="t1"), "trial", "catching_up") as listener,
        httpx.AsyncClient(base_url=listener.url, timeout=240) as client,
    ):
        early = await client.get("/healthz")
        assert (early.status_code, early.json()["reason"]) == (503, "Kafka does not answer.")
        refused = await client.post("/ask", json={"tokens": 16})
        assert (refused.status_code, refused.json()["code"]) == (503, "catching_up")
        app = build_app("trial", ROUTES, lambda: WELL)
        serving_it = asyncio.create_task(listener.serve(app, stop))
        status = 503
        while status == 503:
            with contextlib.suppress(httpx.TransportError):  # the early server closed it
                status = (await client.get("/healthz")).status_code
        assert status == 200
        assert (await client.post("/ask", json={"tokens": 16})).json() == {"tokens": 16}
        stop.set()
        await asyncio.wait_for(serving_it, 240)
