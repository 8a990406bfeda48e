"""Access to the console, and headers that restrict browsers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as Asked
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from stele.cli.main import build_app as command_line
from stele.console.access import MARK, AccessControl
from stele.console.http import command_routes, stream_route
from stele.console.operations import OPERATIONS, CommandAsked, envelope_of, mark_of
from stele.console.settings import ConsoleSettings, is_loopback
from stele.console.upstream import Upstream
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    DropKeyspace,
    Envelope,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveNode,
    MoveTablets,
    Rebuild,
    Rejection,
    Remove,
    RepairTable,
    ResizeTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import Request, time_ms
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.preflight import Gain, PlannedPlacement, Preflight, Share
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from stele.runtime.callers import LOOK_S, Caller, Callers, line_of
from stele.runtime.http import Health, HttpError, bind, build_app, serving
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import ConfigurationError, load_settings

NOBODY = Upstream(None, {})  # type: ignore[arg-type]
"""Requests to an upstream service fail."""
TOKEN = "t0ken"
LATE = 100
"""More events than can be in flight."""


def client(token: str, host: str, callers: Callers | None = None) -> httpx.AsyncClient:
    async def there(_: Asked) -> PlainTextResponse:
        return PlainTextResponse("there")

    routes = [Route(path, there, methods=["GET", "POST"]) for path in ("/", "/api/x", "/page/x.js")]
    app = Starlette(
        routes=routes, middleware=[Middleware(AccessControl, token=token, callers=callers)]
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:8090", "[::1]:8090", "127.1.2.3"])
async def test_loopback_host_names_are_accepted(host: str) -> None:
    async with client("", host) as http:
        assert (await http.get("/api/x")).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7", ""])
async def test_foreign_host_name_is_refused(host: str) -> None:
    async with client("", "127.0.0.1") as http:
        answer = await http.get("/api/x", headers={"host": host})
        assert answer.status_code == 421
        assert answer.json()["code"] == "foreign_host"


async def test_api_needs_the_token_of_the_console() -> None:
    async with client(TOKEN, "console.example") as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/page/x.js")).status_code == 200
        assert (await http.get("/api/x")).status_code == 401
        for given in (b"Bearer wrong", b"Bearer %sx" % TOKEN.encode(), "Bearer é".encode()):
            answer = await http.get("/api/x", headers={b"authorization": given})
            assert answer.status_code == 401
        answer = await http.get("/api/x", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200


async def test_api_needs_the_token_of_a_caller_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "callers"
    file.write_text(f"{line_of('ada', TOKEN)}\n")
    for host in ("127.0.0.1", "console.example"):
        async with client("", host, Callers(file)) as http:
            assert (await http.get("/page/x.js")).status_code == 200
            for given in ({}, {"authorization": "Bearer another"}):
                answer = await http.get("/api/x", headers=given)
                assert (answer.status_code, answer.json()["code"]) == (401, "token_needed")
            shown = {"authorization": f"Bearer {TOKEN}"}
            assert (await http.get("/api/x", headers=shown)).status_code == 200
            foreign = await http.post("/api/x", headers=shown)
            assert foreign.status_code == 403, "a token makes no page of another site ours"


async def test_commands_that_the_caller_may_not_send_are_not_forwarded() -> None:
    """The caller cannot use another name either. The metadata-log may accept any actor."""
    ann = Caller("ann", frozenset({"leave"}))
    envelope = await envelope_of(asked("decommission", node="n1"), NOBODY, ann)
    assert envelope.actor == "ann"
    for caller, code in (
        (Caller("ann", frozenset({"remove"})), "not_allowed"),
        (Caller("bob", frozenset({"leave"})), "other_actor"),
    ):
        with pytest.raises(HttpError) as found:
            await envelope_of(asked("decommission", node="n1"), NOBODY, caller)
        assert (found.value.status, found.value.body.code) == (403, code)


async def test_stream_ends_once_its_token_is_withdrawn(tmp_path: Path) -> None:
    """No event follows, and the resources of the stream are released."""
    file, now_s, ended = tmp_path / "callers", 0.0, asyncio.Event()
    file.write_text(f"{line_of('ada', TOKEN)}\n")

    class Endless:
        async def events(self, *_: object) -> AsyncGenerator[bytes]:
            try:
                while True:
                    yield b"data: x\n\n"
                    await asyncio.sleep(0.01)
            finally:
                ended.set()

    app = build_app("trial", [stream_route(Endless())], lambda: Health(ok=True))  # type: ignore[arg-type]
    callers = Callers(file, lambda: now_s)
    app.user_middleware.insert(0, Middleware(AccessControl, token="", callers=callers))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        asyncio.timeout(240),
        serving(app, bind("127.0.0.1", 0)) as url,
        httpx.AsyncClient(base_url=url, timeout=240, headers=headers) as http,
        http.stream("GET", "/api/stream") as answer,
    ):
        parts = answer.aiter_raw()
        await anext(parts)
        file.write_text(f"{line_of('ada', 'another')}\n")
        now_s += LOOK_S
        late = 0
        async for _ in parts:
            late += 1
            assert late < LATE, "the stream goes on"
        await ended.wait()
        assert (await http.get("/api/stream")).status_code == 401


def test_common_token_and_callers_file_exclude_each_other() -> None:
    given = {"STELE_CONSOLE_TOKEN": TOKEN, "STELE_HTTP_CALLERS_FILE": "/callers"}
    with pytest.raises(ConfigurationError, match="leave one of them out"):
        load_settings(ConsoleSettings, given)
    assert ConsoleSettings(http_host="0.0.0.0", http_callers_file="/callers").token() == ""


async def test_requests_from_pages_of_other_sites_are_refused() -> None:
    async with client("", "127.0.0.1:8090") as http:
        assert (await http.post("/api/x")).status_code == 403
        foreign = {MARK: "1", "origin": "http://evil.example"}
        assert (await http.post("/api/x", headers=foreign)).status_code == 403
        own = {MARK: "1", "origin": "http://127.0.0.1:8090"}
        assert (await http.post("/api/x", headers=own)).status_code == 200
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
            answer = await http.get("/api/x", headers={"sec-fetch-site": site})
            assert answer.status_code == status, site
        assert (await http.get("/", headers={"sec-fetch-site": "cross-site"})).status_code == 200


async def test_every_answer_forbids_foreign_scripts_and_frames() -> None:
    async with client(TOKEN, "console.example") as http:
        for path in ("/", "/api/x", "/nothing"):
            answer = await http.get(path)
            policy = answer.headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_console_outside_of_loopback_always_has_a_token() -> None:
    assert ConsoleSettings().token() == ""
    assert ConsoleSettings(http_host="localhost").token() == ""
    drawn = ConsoleSettings(http_host="0.0.0.0").token()
    assert len(drawn) >= 32
    assert drawn != ConsoleSettings(http_host="0.0.0.0").token()
    assert ConsoleSettings(http_host="::", console_token=TOKEN).token() == TOKEN
    assert not is_loopback("")


def asked(operation: str, reason: str = "x", **fields: str) -> CommandAsked:
    return CommandAsked(operation=operation, fields=fields, reason=reason, actor=" ann ")


async def test_command_without_a_reason_is_refused() -> None:
    for nothing in ("  ", "\u200b", "\u2060 \x1b\n"):
        with pytest.raises(HttpError, match="no reason"):
            await envelope_of(asked("decommission", nothing, node="n1"), NOBODY)


async def test_only_operations_of_the_page_are_accepted() -> None:
    for name in ("set_setting", "advance", "load_state", "__class__", ""):
        with pytest.raises(HttpError, match="no operation"):
            await envelope_of(asked(name), NOBODY)
    with pytest.raises(HttpError, match="no field 'x'"):
        await envelope_of(asked("decommission", node="n1", x="y"), NOBODY)
    with pytest.raises(HttpError, match="node is missing"):
        await envelope_of(asked("decommission"), NOBODY)


async def test_envelope_has_actor_reason_and_origin() -> None:
    envelope = await envelope_of(asked("decommission", "old\n machine", node="n1"), NOBODY)
    assert (envelope.actor, envelope.reason, envelope.origin) == ("ann", "old machine", "console")
    assert envelope.command == Leave("n1")
    assert envelope.request_id
    taken = msgspec.json.decode(msgspec.json.encode(envelope), type=Envelope)
    assert taken.command == Leave("n1")


TOKEN_BEYOND = 9_007_199_254_740_993
"""One above the largest exact number of a browser."""
ASKED: dict[str, tuple[dict[str, str], object]] = {
    "cancel abc": ({"request": "abc"}, Cancel("abc")),
    "decommission n1": ({"node": "n1"}, Leave("n1")),
    "remove n1 --ignore n2 --ignore n3 --force": (
        {"node": "n1", "ignore": "n2, n3", "force": "true"},
        Remove(node_id="n1", ignore_nodes=("n2", "n3"), force=True),
    ),
    "exclude n1 n2": ({"nodes": "n1,n2"}, Exclude(("n1", "n2"))),
    f"move n1 --tokens=-5,{TOKEN_BEYOND}": (
        {"node": "n1", "tokens": f"-5,{TOKEN_BEYOND}"},
        MoveNode(node_id="n1", tokens=(-5, TOKEN_BEYOND)),
    ),
    "rebuild n1 --source-dc dc2": (
        {"node": "n1", "source_dc": "dc2"},
        Rebuild(node_id="n1", source_dc="dc2"),
    ),
    "keyspace create shop --replication dc1=3 --tablets": (
        {"name": "shop", "replication": "dc1=3", "tablets": "true"},
        CreateKeyspace("shop", {"dc1": 3}, tablets=True),
    ),
    "keyspace alter shop --replication dc1=r1,r2": (
        {"name": "shop", "replication": "dc1=r1,r2"},
        KeyspaceRfChange("shop", {}, racks={"dc1": ("r1", "r2")}),
    ),
    "keyspace drop shop": ({"name": "shop"}, DropKeyspace("shop")),
    "table resize shop.orders 16": (
        {"name": "shop.orders", "tablets": "16"},
        ResizeTable("shop.orders", 16),
    ),
    "table repair shop.orders --nodes n1 --nodes n2": (
        {"name": "shop.orders", "nodes": "n1 n2"},
        RepairTable("shop.orders", ("n1", "n2")),
    ),
    "tablet move shop.orders 3 --from n1 --to n2": (
        {"table": "shop.orders", "tablet": "3", "from": "n1", "to": "n2"},
        MoveTablets((TabletMove(table="shop.orders", tablet=3, from_node="n1", to_node="n2"),)),
    ),
    "balance on": ({}, SwitchBalancingOn()),
}


@pytest.mark.parametrize("line", ASKED)
async def test_operation_sends_the_command_of_its_command_line(line: str) -> None:
    """The line is read by the command line itself."""
    fields, command = ASKED[line]
    (operation,) = [
        o for o in OPERATIONS.values() if line == o.text.line or line.startswith(f"{o.text.line} ")
    ]
    assert operation.command_line(fields) == f"stele {line}"
    envelope = await envelope_of(asked(operation.text.name, **fields), NOBODY)
    assert envelope.command == command
    function, bound, _ = command_line().parse_args(
        line.split(), print_error=False, exit_on_error=False
    )
    assert callable(function)
    assert bound.signature.parameters


def test_every_operation_has_a_valid_command_line() -> None:
    for operation in OPERATIONS.values():
        values = {field.name: VALUES.get(field.kind, "x") for field in operation.fields}
        line = operation.command_line(values).removeprefix("stele ")
        command_line().parse_args(line.split(), print_error=False, exit_on_error=False)


VALUES = {
    "number": "8",
    "flag": "true",
    "tokens": "1,2",
    "span": "90s",
    "replication": "dc1=3",
    "nodes": "n1,n2",
    "table": "shop.orders",
}


async def test_repeated_pause_has_the_same_end_time() -> None:
    again = msgspec.structs.replace(
        asked("balance-off", name="shop", lasting="30m"), request_id=new_request_id()
    )
    first, second = await envelope_of(again, NOBODY), await envelope_of(again, NOBODY)
    assert first == second
    command = first.command
    assert isinstance(command, SwitchBalancingOff)
    assert command.until_ms == time_ms(first.request_id) + 30 * 60_000


@pytest.mark.parametrize("address", ["", "ftp://x", "http://", "http://[", "file:///etc/passwd"])
async def test_join_needs_a_valid_address(address: str) -> None:
    with pytest.raises(HttpError):
        await envelope_of(asked("join", address=address), NOBODY)


async def test_read_only_console_contacts_no_address() -> None:
    """Otherwise a viewer could send requests into the console's network."""
    routes = command_routes(None, NOBODY, may_command=False)  # type: ignore[arg-type]
    http = httpx.AsyncClient(
        transport=httpx.ASGITransport(build_app("console", routes, lambda: Health(ok=True))),
        base_url="http://127.0.0.1",
    )
    async with http:
        for path in ("/api/plan", "/api/commands"):
            fields = {"operation": "join", "fields": {"address": "http://127.0.0.1:1"}}
            more = {"reason": "x"} if path == "/api/commands" else {}
            answer = await http.post(path, json={**fields, **more})
            assert (answer.status_code, answer.json()["code"]) == (403, "read_only")


def test_fingerprint_of_a_plan_covers_only_its_effects() -> None:
    """Changing values and random names of a plan are not compared."""
    request = Request(request_id="r", kind=RequestKind.MOVE, status=RequestStatus.PENDING)
    placed = PlannedPlacement(
        placement="p1",
        keyspaces=("shop",),
        ranges=9,
        changing=2,
        changing_share=0.1,
        nodes={},
        racks={},
    )
    gain = Gain(node_id="n1", placement="p1", ranges=2, share=0.1, sources=("n2",), needed=1)
    plan = Preflight(request=request, alone=True, gains=(gain,), placements=(placed,))
    answer = PlanAnswer(epoch=7, state_id="", plan=plan, verdict=PlanVerdict.STARTS)
    renamed = replace(
        plan,
        gains=(replace(gain, placement="p2"),),
        placements=(replace(placed, placement="p2", ranges=11, nodes={"n1": Share(1, 2)}),),
    )
    same = replace(answer, epoch=9, state_id="x", size_bytes=5, plan=renamed)
    assert mark_of(same) == mark_of(answer)
    for other in (
        replace(answer, verdict=PlanVerdict.WAITS),
        replace(answer, plan=replace(plan, excludes=("n9",))),
        replace(answer, plan=replace(plan, gains=(replace(gain, sources=("n3",)),))),
        replace(answer, plan=replace(plan, placements=(replace(placed, changing=3),))),
        replace(answer, plan=replace(plan, refusal=Rejection("no_room", ""))),
    ):
        assert mark_of(other) != mark_of(answer)
