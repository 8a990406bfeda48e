"""Commands that change the cluster: what they send, and how they follow the request."""

from __future__ import annotations

import io
import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import httpx
import msgspec
import pytest

from stele.cli.commands.data import data_path
from stele.cli.follow import FollowedOutput
from stele.cli.history import RequestHistory
from stele.domain.model.requests import time_ms
from stele.domain.names import RequestKind
from stele.runtime.answers.common import ErrorBody
from stele.runtime.answers.coordinator import NodeProgress, TransitionProgress
from stele.runtime.request_ids import new_request_id
from tests.cli.conftest import NODES, Server, Stele, Terminal, at, cluster, request, transition
from tests.cli.test_reads import IDLE
from tests.cli.test_why import STALLED

ACCEPTED = {"request_id": "x", "applied": True, "epoch": 8, "state_id": "00"}


def sent(server: Server) -> dict[str, object]:
    (asked,) = server.asked_for("/v1/commands")
    found: dict[str, object] = msgspec.json.decode(asked.body)
    return found


IDENTITY = {
    "node_id": "n3",
    "host_id": "host-3",
    "cluster": "books",
    "dc": "dc1",
    "rack": "r3",
    "num_tokens": 8,
    "address": "http://n3:1",
    "supported_features": ["tablets"],
    "release_version": "2.0",
}


def test_join_reads_the_identity_of_the_node(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/node", IDENTITY)
    server.answer("POST", "/v1/commands", ACCEPTED)
    ran = stele.ok("join", server.url, "--no-wait", "--reason", "more room")
    command = sent(server)["command"]
    assert isinstance(command, dict)
    assert {key: command[key] for key in IDENTITY} == IDENTITY
    assert command["type"] == "join"
    assert f"stele request follow {sent(server)['request_id']}" in ran.out


def test_join_with_options_still_reads_the_host_id_of_the_node(
    server: Server, stele: Stele
) -> None:
    """Without the host id the row in the log would be of another replica than the running one."""
    server.answer("GET", "/v1/node", IDENTITY)
    server.answer("POST", "/v1/commands", ACCEPTED)
    flags = ("--node-id", "n4", "--dc", "dc2", "--rack", "r4", "--num-tokens", "4", "--no-wait")
    assert stele("join", server.url, *flags).exit_code == 0
    command = sent(server)["command"]
    assert isinstance(command, dict)
    given = {"node_id": "n4", "dc": "dc2", "rack": "r4", "num_tokens": 4}
    assert {key: command[key] for key in IDENTITY} == IDENTITY | given


def test_join_at_the_address_of_another_service_names_the_service(
    server: Server, stele: Stele
) -> None:
    position = {"service": "metadata-log", "instance": "ml", "epoch": 1}
    position |= {"state_id": "", "log_id": "", "hash": ""}
    server.answer("GET", "/v1/position", position)
    ran = stele.exits(2, "join", server.url)
    assert f"{server.url} is a metadata-log, not a data node." in ran.err


def follows(server: Server, request_id: str, *steps: tuple[int, str, str]) -> None:
    """Answer with the request at these epochs, with its status and the state of its transition."""
    for epoch, status, state in steps:
        row = request(status, request_id=request_id, finished_epoch=12, finished_at_ms=4_000)
        moving = transition(state, request_id) if state else None
        answer = {**at(epoch), "request": row, "transition": moving}
        server.answer("GET", f"/v1/requests/{request_id}", answer)


def test_request_with_a_renewed_id_is_followed_under_the_new_id(
    server: Server, stele: Stele
) -> None:
    horizon_ms = time_ms(new_request_id()) + 240_000
    refused = {"code": "request_id_expired", "message": "too old", "hint": ""}
    server.answer(
        "POST", "/v1/commands", {**refused, "details": {"horizon_ms": str(horizon_ms)}}, 410
    )
    server.answer("POST", "/v1/commands", ACCEPTED)
    ran = stele.ok("decommission", "n3", "--no-wait")
    _, again = [msgspec.json.decode(asked.body) for asked in server.asked_for("/v1/commands")]
    assert time_ms(again["request_id"]) > horizon_ms
    assert f"follow it with: stele request follow {again['request_id']}" in ran.out


def test_change_prints_its_request_id_and_follows_to_the_end(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    follows(
        server, "mine", (8, "pending", ""), (9, "running", "write_both_read_old"), (12, "done", "")
    )
    ran = stele.ok("decommission", "n1", "--request-id", "mine")
    lines = ran.out.splitlines()
    assert lines[0] == "request mine"
    assert lines[1] == "accepted at epoch 8"
    assert lines[-1] == "done at epoch 12, 3.0 s after it was asked for"
    assert any("epoch    9  write_both_read_old" in line for line in lines)
    assert not server.asked_for("/v1/state")


def test_each_removed_node_gets_its_own_request(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    ran = stele.ok("remove", "n4", "n5", "--ignore", "n6", "--no-wait")
    bodies = [msgspec.json.decode(asked.body) for asked in server.asked_for("/v1/commands")]
    removed = {"type": "remove", "ignore_nodes": ["n6"], "force": False}
    assert [body["command"] for body in bodies] == [
        removed | {"node_id": "n4"},
        removed | {"node_id": "n5"},
    ]
    assert len({body["request_id"] for body in bodies}) == 2
    assert ran.out.count("follow it with: stele request follow ") == 2


def test_follow_shows_only_the_state_of_its_request(server: Server, stele: Stele) -> None:
    """Another transition is open at the same time."""
    cluster(
        server,
        requests=[request("done", request_id="mine")],
        transitions=[transition("write_both_read_old", "other")],
    )
    assert "write_both_read_old" not in stele.ok("request", "follow", "mine").out


DELETES = [("truncate", "library"), ("keyspace", "drop", "library"), ("table", "drop", "library.t")]


@pytest.mark.parametrize("command", DELETES)
def test_deleting_data_needs_the_typed_name_or_yes(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    assert "--yes" in stele.exits(2, *command, "--no-wait").err
    for typed, posted in (("another", 0), (command[-1], 1)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{typed}\n"))
        asked = stele(*command, "--no-wait", "--reason", "a rehearsal")
        assert asked.exit_code == (0 if posted else 2), asked.err
        assert len(server.asked_for("/v1/commands")) == posted
    assert sent(server)["reason"] == "a rehearsal"


def test_cancel_accepts_a_prefix_of_an_id(server: Server, stele: Stele) -> None:
    cluster(server, requests=[request("running")])
    server.answer("POST", "/v1/commands", ACCEPTED)
    stele.ok("cancel", "join-n3", "--request-id", "mine", "--no-wait")
    assert sent(server)["command"] == {"type": "cancel", "target": "join-n3-1"}
    assert sent(server)["request_id"] == "mine"
    assert server.asked_for("/v1/requests")[0].query["prefix"] == ["join-n3"]


def test_cancel_with_an_ambiguous_prefix_sends_nothing(server: Server, stele: Stele) -> None:
    two = [request("running"), request("pending", request_id="join-n3-2")]
    cluster(server, requests=two)
    ran = stele.exits(1, "cancel", "join-n3")
    assert "2 requests begin with 'join-n3' at epoch 7: join-n3-1, join-n3-2." in ran.err
    assert not server.asked_for("/v1/commands")


def test_failed_request_fails_the_command_with_its_reason(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    row = request("failed", request_id="mine", error="n1 [no data]", finished_at_ms=2_000)
    cluster(server, requests=[row])
    ran = stele.exits(1, "decommission", "n1", "--request-id", "mine")
    *_, end, advice = ran.out.splitlines()
    assert end.endswith("n1 [no data]")
    assert advice.startswith("do: remove the cause and ask again; `stele plan`")


def test_follow_prints_an_unchanged_wait_once(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    row = request("running", request_id="mine")
    moving = transition("write_both_read_old", "mine")
    for _ in range(3):
        answer = {**at(9), "request": row, "transition": moving}
        server.answer("GET", "/v1/requests/mine", answer)
    follows(server, "mine", (12, "done", ""))
    wait = {**STALLED, "request_ids": ["mine"]}
    server.answer("GET", "/v1/progress", {**IDLE, "waits": [wait]})
    ran = stele("decommission", "n1", "--request-id", "mine")
    shown = [line for line in ran.out.splitlines() if "has waited" in line]
    assert len(shown) == 1
    assert "the cause is n2: is down, and gives n3 no data" in shown[0]
    assert "(STELE_SILENCE_S is 60 s), it is undone" in shown[0]


def test_follow_reads_the_end_of_a_forgotten_request_from_the_log(
    server: Server, stele: Stele
) -> None:
    """Requests of the balancer are forgotten as soon as they end."""
    running = request("running", request_id="mine")
    cluster(server, requests=[running])
    server.answers.pop(("GET", "/v1/requests/mine"), None)
    server.answer("GET", "/v1/requests/mine", {**at(9), "request": running, "transition": None})
    gone = {"code": "unknown_request", "message": "There is no request 'mine'."}
    server.answer("GET", "/v1/requests/mine", gone, status=404)
    done = {**running, "status": "done", "finished_epoch": 12, "finished_at_ms": 4_000}
    facts = [
        {"type": "RequestChanged", "request": done},
        {"type": "RequestForgotten", "request_id": "mine"},
    ]
    end = {"epoch": 12, "command": "advance", "at_ms": 4_000, "facts": facts}
    server.answer("GET", "/v1/epochs", [])
    server.answer("GET", "/v1/epochs", [end])
    server.answer("GET", "/v1/epochs", [])
    ran = stele.ok("request", "follow", "mine")
    assert ran.out.splitlines()[-2:] == [
        "  3.0 s  epoch   12  done",
        "done at epoch 12, 3.0 s after it was asked for",
    ]


def test_follow_reports_a_silent_coordinator_once() -> None:
    seen = FollowedOutput(RequestHistory("mine"), knows_coordinator=True)
    assert seen.alone() == []
    seen.began -= 3
    assert ["No coordinator answers" in line for line in seen.alone() + seen.alone()] == [True]


def test_follow_without_a_progress_bar_prints_streamed_bytes_at_intervals() -> None:
    """At the first data, every ten seconds, and when all of it has arrived."""

    def work(done: int) -> TransitionProgress:
        status = "success" if done == 4_000_000 else "running"
        return TransitionProgress(
            transition_id="t",
            request_ids=("mine",),
            kind=RequestKind.JOIN,
            state="write_both_read_old",
            session="s",
            going_back="",
            waiting_for="stream by n3",
            blockers=(),
            nodes={"n3": NodeProgress("stream", status, done, 4_000_000, 1, "")},
            bytes_done=done,
            bytes_total=4_000_000,
            bytes_per_s=100_000.0,
            eta_s=30.0,
        )

    seen = FollowedOutput(RequestHistory("mine"))

    def told(after_s: float, done: int) -> list[str]:
        seen.began = time.monotonic() - after_s
        return seen.moved(work(done))

    said = [told(1, 0), told(2, 1_000_000), told(11.1, 2_000_000), told(12, 3_000_000)]
    line = "         {} of 4.0 MB streamed, about 30.0 s to go at 100.0 kB/s"
    assert said == [[line.format("0 B")], [], [line.format("2.0 MB")], []]
    assert [told(30, 3_000_000), told(50, 3_000_000)] == [[line.format("3.0 MB")], []], (
        "nothing has moved"
    )
    assert [told(51, 4_000_000), told(70, 4_000_000)] == [["         4.0 MB streamed"], []]


def test_get_and_put_skip_a_dead_member(server: Server, stele: Stele, tmp_path: Path) -> None:
    dead, alive = "http://127.0.0.1:9", server.url
    cluster(server, nodes=[{**NODES[0], "address": dead}, {**NODES[1], "address": alive}])
    path = "/v1/data/library/a%20b/%C3%BC"
    server.answer("PUT", path, {"timestamp": 5, "version": 3, "epoch": 7, "acks": ["n1", "n2"]})
    (tmp_path / "value").write_bytes(b"\x00\xff")
    assert stele("put", "library", "a b/ü", "--file", str(tmp_path / "value")).exit_code == 0
    assert server.asked_for(path)[0].body == b"\x00\xff"
    assert server.asked_for(path)[0].query == {"consistency": ["quorum"]}


@pytest.mark.parametrize("key", [".", "..", "a/../b", "a//b", "...", "a.b"])
def test_key_with_dots_is_escaped_in_the_path(key: str) -> None:
    path = httpx.URL(f"http://n1{data_path('library', key)}").raw_path.decode()
    assert unquote(path) == f"/v1/data/library/{key}"


def test_get_without_a_quorum_fails_with_that_reason(server: Server, stele: Stele) -> None:
    alive = {**NODES[0], "address": server.url}
    cluster(server, nodes=[alive, {**NODES[1], "address": "http://127.0.0.1:9"}])
    refused = {"code": "no_quorum", "message": "1 of 2 replicas answered.", "hint": "Try again."}
    server.answer("GET", "/v1/data/library/key", refused, status=503)
    ran = stele.exits(1, "get", "library", "key")
    assert ran.err == "stele: 1 of 2 replicas answered. Try again.\n"


def test_write_with_an_unknown_outcome_is_not_reported_as_refused(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(server, nodes=[{**node, "address": server.url} for node in NODES[:2]])
    unknown = {"code": "outcome_unknown", "message": "It may have been written."}
    server.answer("PUT", "/v1/data/library/key", unknown, status=504)
    server.answer("PUT", "/v1/data/library/key", {"code": "x", "message": "No."}, status=503)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    assert "It may have been written." in stele.exits(3, "put", "library", "key", "-").err


def test_put_reads_standard_input(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    server.answer("PUT", "/v1/data/library/key", {"timestamp": 5, "version": 3, "epoch": 7})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    stele.ok("put", "library", "key", "-")
    assert server.asked_for("/v1/data/library/key")[0].body == b"hello"


def test_put_takes_a_value_argument_and_delete_deletes_the_key(
    server: Server, stele: Stele
) -> None:
    path, written = "/v1/data/library/key", {"timestamp": 5, "version": 3, "epoch": 7}
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    server.answer("PUT", path, written)
    server.answer("DELETE", path, written)
    ran = stele.ok("put", "library", "key", "1")
    assert server.asked_for(path)[0].body == b"1"
    for given in ((), ("1", "--file", "f")):
        wrong = stele.exits(2, "put", "library", "key", *given)
        assert "--file FILE" in " ".join(wrong.err.split())
    ran = stele.ok("delete", "library", "key", "--consistency", "all")
    assert "deleted at 5" in ran.err
    assert server.asked_for(path)[1].method == "DELETE"
    assert server.asked_for(path)[1].query == {"consistency": ["all"]}


def test_get_writes_raw_bytes(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    server.answer("GET", "/v1/data/library/key", b"\x00\xff\n")
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    assert stele("get", "library", "key").exit_code == 0
    assert out.buffer.getvalue() == b"\x00\xff\n"


def test_row_is_addressed_by_its_key_columns_and_printed_on_one_line(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/data/shop.orders/ada/2026-11-29"
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    server.answer("PUT", path, {"timestamp": 5, "version": 3, "epoch": 7})
    server.answer("GET", path, {"total": 3}, x_stele_table_version="7")
    stele.ok("put", "shop.orders", "ada/2026-11-29", '{"total": 3}')
    assert server.asked_for(path)[0].body == b'{"total": 3}'
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    assert stele("get", "shop.orders", "ada/2026-11-29").exit_code == 0
    assert out.buffer.getvalue() == b'{"total":3}\n'


def test_get_of_a_missing_key_fails(server: Server, stele: Stele) -> None:
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    missing = {
        "code": "not_found",
        "message": "There is no such key in 'library'.",
        "details": {"version": 2},
    }
    server.answer("GET", "/v1/data/library/nothing", missing, 404)
    assert "There is no such key in 'library'." in stele.exits(1, "get", "library", "nothing").err


@pytest.mark.parametrize(
    "answer", [b"404 page not found", ErrorBody("not_found", "", details={"path": "/v1/data"})]
)
def test_store_without_the_data_path_is_not_reported_as_a_missing_key(
    server: Server, stele: Stele, answer: object
) -> None:
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    server.answer("GET", "/v1/data/library/dune", answer, 404)
    ran = stele.exits(1, "get", "library", "dune")
    assert "does not serve `stele put`, `get`, `delete` and `cdc tail`" in " ".join(ran.err.split())


IN_THE_FOREGROUND = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    " runpy.run_module('stele.cli', run_name='__main__')"
)
"""A shell's background jobs and their children ignore Ctrl-C. These tests may run in one."""


def test_ctrl_c_leaves_the_request_running_and_prints_how_to_follow_it(server: Server) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    follows(server, "mine", (9, "running", "write_both_read_old"))
    arguments = ("decommission", "n1", "--request-id", "mine", "--url", server.url)
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", IN_THE_FOREGROUND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        shown = list(itertools.takewhile(lambda line: "write_both" not in line, child.stdout))
        assert shown[0] == "request mine\n"
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=240)
    finally:
        child.kill()
    assert child.returncode == 130, errors
    unlike = [line for line in errors.splitlines() if "has not answered for" not in line]
    assert not unlike, "on a busy machine the wait is told, and nothing else"
    assert "stele request follow mine" in rest
    assert "stele cancel mine" in rest
    assert len(server.asked_for("/v1/commands")) == 1
