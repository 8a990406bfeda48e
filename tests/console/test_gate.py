"""Who is let in, and what a browser is told to refuse."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from stele.console.asking import CommandAsked, PlanAsked, command_line
from stele.console.gate import MARK, Gate
from stele.console.settings import ConsoleSettings, is_loopback
from stele.domain.requests.commands import Cancel
from stele.domain.topology.operations.commands import Exclude, Leave, Remove
from stele.runtime.http import HttpError, parse_json

TOKEN = "t0ken"


def client(token: str, host: str) -> httpx.AsyncClient:
    async def there(_: Request) -> PlainTextResponse:
        return PlainTextResponse("there")

    routes = [Route(path, there, methods=["GET", "POST"]) for path in ("/", "/api/x", "/page/x.js")]
    app = Starlette(routes=routes, middleware=[Middleware(Gate, token=token)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:8090", "[::1]:8090", "127.1.2.3"])
async def test_on_loopback_who_names_this_machine_is_let_in(host: str) -> None:
    async with client("", host) as http:
        assert (await http.get("/api/x")).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7", ""])
async def test_a_name_that_somebody_else_leads_here_is_refused(host: str) -> None:
    async with client("", "127.0.0.1") as http:
        answer = await http.get("/api/x", headers={"host": host})
        assert answer.status_code == 421
        assert answer.json()["code"] == "foreign_host"


async def test_with_a_token_nothing_is_read_without_it() -> None:
    async with client(TOKEN, "console.example") as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/page/x.js")).status_code == 200
        assert (await http.get("/api/x")).status_code == 401
        for given in (b"Bearer wrong", b"Bearer %sx" % TOKEN.encode(), "Bearer é".encode()):
            answer = await http.get("/api/x", headers={b"authorization": given})
            assert answer.status_code == 401
        answer = await http.get("/api/x", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200


async def test_another_sites_page_can_ask_for_nothing() -> None:
    async with client("", "127.0.0.1:8090") as http:
        assert (await http.post("/api/x")).status_code == 403
        foreign = {MARK: "1", "origin": "http://evil.example"}
        assert (await http.post("/api/x", headers=foreign)).status_code == 403
        own = {MARK: "1", "origin": "http://127.0.0.1:8090"}
        assert (await http.post("/api/x", headers=own)).status_code == 200


async def test_every_answer_forbids_scripts_and_frames_of_others() -> None:
    async with client(TOKEN, "console.example") as http:
        for path in ("/", "/api/x", "/nothing"):
            answer = await http.get(path)
            policy = answer.headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_beyond_loopback_there_is_always_a_token() -> None:
    assert ConsoleSettings().token() == ""
    assert ConsoleSettings(http_host="localhost").token() == ""
    drawn = ConsoleSettings(http_host="0.0.0.0").token()
    assert len(drawn) >= 32
    assert drawn != ConsoleSettings(http_host="0.0.0.0").token()
    assert ConsoleSettings(http_host="::", console_token=TOKEN).token() == TOKEN
    assert not is_loopback("")


def test_a_command_without_a_reason_is_refused() -> None:
    body = b'{"command": {"type": "leave", "node_id": "n1"}, "reason": "  "}'
    with pytest.raises(HttpError, match="no reason"):
        parse_json(body, CommandAsked).envelope()


def test_only_operations_of_the_page_are_taken() -> None:
    for type_ in ("set_setting", "advance", "load_state"):
        body = b'{"command": {"type": "%s", "name": "a", "value": "b"}, "reason": "x"}'
        with pytest.raises(HttpError):
            parse_json(body % type_.encode(), CommandAsked)
    cancel = b'{"command": {"type": "cancel", "target": "x"}}'
    with pytest.raises(HttpError):  # a cancel is not planned
        parse_json(cancel, PlanAsked)


def test_the_envelope_says_who_why_and_from_where() -> None:
    body = b'{"command": {"type": "leave", "node_id": "n1"}, "reason": "old\\n machine", "actor": " ann "}'
    envelope = parse_json(body, CommandAsked).envelope()
    assert (envelope.actor, envelope.reason, envelope.origin) == ("ann", "old machine", "console")
    assert envelope.command == Leave("n1")
    assert envelope.request_id


def test_the_same_stands_on_the_command_line() -> None:
    assert command_line(Leave("n1")) == "stele decommission n1"
    assert command_line(Cancel("abc")) == "stele cancel abc"
    assert command_line(Exclude(("n1", "n2"))) == "stele exclude n1 n2"
    assert (
        command_line(Remove(node_id="n1", ignore_nodes=("n2",), force=True))
        == "stele remove n1 --ignore n2 --force"
    )
