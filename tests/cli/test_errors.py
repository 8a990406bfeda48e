"""Errors: one line with the remedy, and an exit code for scripts."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stele.cli.client import Client, is_here
from stele.cli.errors import Exit, UnreachableError
from stele.cli.main import run
from stele.cli.notice import RetryNotice
from stele.cli.places import ServiceAddresses
from tests.cli.conftest import Server, Stele, Terminal, cluster, request
from tests.cli.test_changes import ACCEPTED
from tests.cli.test_reads import IDLE

DEAD = "http://127.0.0.1:9"  # the discard port: connections are refused
BUSY = {"code": "busy", "message": "Too many commands are in flight.", "hint": "Try again."}


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def last_line(text: str) -> str:
    """Return the last line, after the notices about retries."""
    *notices, last = text.strip().splitlines()
    assert all("trying again" in notice for notice in notices), text
    return last


def test_command_without_any_address_hints_at_stack_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STELE_URL", raising=False)
    monkeypatch.delenv("STELE_METADATA_LOG_URLS", raising=False)
    assert run(["status", "--dir", str(tmp_path)]) == 3
    assert "stele stack up" in one_line(capsys.readouterr().err)


def test_unreachable_service_fails_within_the_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["status", "--url", DEAD, "--timeout", "2"]) == 3
    err = capsys.readouterr().err
    assert f"{DEAD} cannot be reached" in err.splitlines()[0]
    assert "trying again (1)" in err.splitlines()[0]
    assert "metadata-log did not answer in 2 s" in last_line(err)


def test_address_that_never_answers_is_reported_before_the_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hung:
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        assert run(["status", "--url", url, "--timeout", "6"]) == 3
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"stele: {url} has not answered for ")
    assert "waiting for" in first
    assert "metadata-log did not answer in 6 s" in last and url in last


def test_address_without_a_connection_is_reported_before_the_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The queue of the socket is full, so packets are dropped, as by a firewall."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            url = f"http://127.0.0.1:{port}"
            assert run(["nodes", "--url", url, "--timeout", "5"]) == 3
    assert capsys.readouterr().err.splitlines()[0].startswith(f"stele: {url} ")


def test_another_http_server_at_the_address_fails_at_once(server: Server, stele: Stele) -> None:
    """The process speaks HTTP and has no such path, so a retry would not help."""
    ran = stele.exits(1, "status")
    assert f"The process at {server.url}/ is no metadata-log: 404" in one_line(ran.err)
    assert "--url" in ran.err
    assert len(server.asked) == 1


STOPPED = {
    "code": "reader_stopped",
    "message": "This process cannot read the log any further: run `stele recover`.",
    "hint": "Ask another instance.",
}


@pytest.mark.parametrize(
    ("arguments", "path"), [(["status"], "/v1/topology"), (["found"], "/v1/commands")]
)
def test_lasting_failure_is_reported_once_without_retries(
    arguments: list[str], path: str, server: Server, stele: Stele
) -> None:
    method = "POST" if path == "/v1/commands" else "GET"
    server.answer(method, path, {**STOPPED, "details": {"lasting": True}}, 503)
    ran = stele.exits(3, *arguments)
    assert one_line(ran.err).count(STOPPED["message"]) == 1
    assert len(server.asked_for(path)) == 1


def test_temporary_failure_is_retried(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", {**STOPPED, "details": {"lasting": False}}, 503)
    server.answer("POST", "/v1/commands", ACCEPTED)
    stele.ok("found")
    assert len(server.asked_for("/v1/commands")) == 2


def test_lasting_failure_of_one_instance_does_not_end_retries_of_others(server: Server) -> None:
    """One instance has stopped reading for good. The unreachable one may still read."""
    server.answer("GET", "/v1/topology", {**STOPPED, "details": {"lasting": True}}, 503)
    places = ServiceAddresses({"metadata-log": (server.url, DEAD)}, "")
    client = Client(places, retry_for_s=1.0)
    with pytest.raises(UnreachableError, match=r"did not answer in 1 s"):
        client.get_raw("metadata-log", "/v1/topology")
    assert len(server.asked_for("/v1/topology")) > 1
    client.close()


def test_retry_notice_on_a_terminal_is_one_updated_line() -> None:
    out = Terminal()
    notice = RetryNotice(out)
    for attempt in (1, 2, 3):
        notice.tell("http://a cannot be reached", attempt, 30 - attempt)
    notice.end()
    assert out.getvalue().count("\n") == 0
    assert "trying again (3), for 27 s more" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["epoch", "show"],
        ["epoch", "show", "seven"],
        ["keyspace", "create", "k", "--replication", "dc1"],
        ["join"],
        ["keyspace", "create", "k", "--replication", "dc1=1", "--replication", "dc1=2"],
        ["stack", "up", "--brokers", "2"],
        ["stack", "up", "--nodes", "-1"],
        ["status", "--timeout", "0"],
        ["status", "--epoch", "0"],
        ["epochs", "--last", "0"],
        ["watch", "--count", "0"],
        ["demo", "--step"],
        ["put", "library", "\udcff", "value"],
    ],
)
def test_invalid_command_line_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert one_line(capsys.readouterr().err).startswith("stele: ")


def test_rejected_command_fails_with_reason_and_hint(server: Server, stele: Stele) -> None:
    rejection = {"code": "too_few_nodes", "message": "2 nodes would remain.", "hint": "Add one."}
    outcome = {"request_id": "x", "applied": False, "epoch": 9, "state_id": "00"}
    outcome["rejection"] = rejection
    server.answer("POST", "/v1/commands", outcome, status=409)
    ran = stele.exits(1, "decommission", "n1")
    assert one_line(ran.err) == "stele: Refused: 2 nodes would remain. Add one."


def test_error_of_a_service_is_printed_unchanged(server: Server, stele: Stele) -> None:
    gone = {"code": "epoch_not_found", "message": "Epoch 99 is not there.", "hint": "Ask below 8."}
    server.answer("GET", "/v1/epochs/99", gone, status=404)
    ran = stele.exits(1, "epoch", "show", "99")
    assert one_line(ran.err) == "stele: Epoch 99 is not there. Ask below 8."


def test_busy_service_is_retried_with_the_same_request_id(server: Server, stele: Stele) -> None:
    outcome = {"request_id": "x", "applied": True, "epoch": 9, "state_id": "00"}
    server.answer("POST", "/v1/commands", BUSY, status=503)
    server.answer("POST", "/v1/commands", BUSY, status=504)
    server.answer("POST", "/v1/commands", outcome)
    ran = stele.ok("keyspace", "create", "library", "--replication", "dc1=3", "--reason", "books")
    sent = [msgspec.json.decode(asked.body) for asked in server.asked_for("/v1/commands")]
    assert len(sent) == 3
    assert len({envelope["request_id"] for envelope in sent}) == 1
    assert sent[0]["reason"] == "books"
    assert sent[0]["actor"] == "ada"
    assert sent[0]["request_id"] in ran.out.splitlines()[0]


def test_unknown_outcome_prints_the_request_id_for_a_retry(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", BUSY, status=503)
    ran = stele.exits(3, "decommission", "n1", "--request-id", "mine", "--timeout", "0.3")
    assert "--request-id mine" in last_line(ran.err)


def test_unknown_outcome_has_the_health_reason_of_the_service(server: Server, stele: Stele) -> None:
    gone = "Nothing is decided: the topic stele.library.epochs is not there"
    server.answer("POST", "/v1/commands", {"code": "timed_out", "message": "In vain."}, 504)
    server.answer("GET", "/healthz", {"ok": False, "epoch": 7, "reason": gone}, 503)
    ran = stele.exits(3, "decommission", "n1", "--request-id", "mine", "--timeout", "0.3")
    assert "The outcome of request mine is unknown" in last_line(ran.err)
    assert f"Its health check reports: {gone}." in last_line(ran.err)


def test_read_without_an_answer_has_the_health_reason_of_the_service(
    server: Server, stele: Stele
) -> None:
    away = "The brokers have not shown the log for 8 s"
    server.answer("GET", "/v1/topology", {"code": "unavailable", "message": "In vain."}, 503)
    server.answer("GET", "/healthz", {"ok": False, "epoch": 7, "reason": away}, 503)
    ran = stele.exits(3, "why", "--timeout", "0.3")
    assert f"Its health check reports: {away}." in last_line(ran.err)
    assert "Is it running?" not in ran.err


@pytest.mark.parametrize(
    ("body", "status"),
    [({"ok": True, "reason": "for your information"}, 200), (["no health"], 503)],
)
def test_unknown_outcome_omits_the_health_of_a_healthy_service(
    server: Server, stele: Stele, body: object, status: int
) -> None:
    server.answer("POST", "/v1/commands", {"code": "timed_out", "message": "In vain."}, 504)
    server.answer("GET", "/healthz", body, status)
    ran = stele("decommission", "n1", "--request-id", "mine", "--timeout", "0.3")
    assert "is unknown" in last_line(ran.err)
    assert "reports:" not in ran.err


def test_next_address_is_used_if_one_is_dead(server: Server, stele: Stele) -> None:
    cluster(server)
    assert "library" in stele.ok("keyspace", "list", "--url", DEAD, "--url", server.url).out


@pytest.mark.parametrize(
    ("url", "verified"),
    [(DEAD, False), (DEAD.replace("http", "https"), True), (DEAD.replace("http", "HTTPS"), True)],
)
def test_certificates_are_loaded_only_for_https_addresses(
    monkeypatch: pytest.MonkeyPatch, url: str, verified: bool
) -> None:
    seen: list[bool] = []

    class Recording(httpx.Client):
        def __init__(self, *, verify: ssl.SSLContext | bool, **rest: Any) -> None:
            seen.append(bool(verify))
            super().__init__(verify=verify, **rest)

    monkeypatch.setattr(httpx, "Client", Recording)
    client = Client(ServiceAddresses({"metadata-log": (url,)}, ""), retry_for_s=0.1)
    for ask in (
        lambda: client.get_one(url, dict),
        lambda: client.get("metadata-log", "/v1/topology", dict),
        lambda: client.stream("metadata-log", "/v1/epochs/stream", {}).__enter__(),
    ):
        with pytest.raises(UnreachableError):
            ask()
    client.close()
    assert seen == [verified]


def test_unreadable_certificate_authorities_are_a_usage_error(
    stele: Stele, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    ran = stele("nodes", "--url", DEAD.replace("http", "https"))
    assert ran.exit_code == Exit.USAGE
    assert "SSL_CERT_FILE" in one_line(ran.err) and "cannot be read" in ran.err


def test_why_reports_a_missing_coordinator(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STELE_COORDINATOR_URLS")
    cluster(server, requests=[request("pending")])
    assert "No coordinator answers" in stele.ok("why").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["put", "shop"], "Write `stele put TABLE KEY VALUE`."),
        (["get", "shop"], "Write `stele get TABLE KEY`."),
        (["cancel"], "Write `stele cancel REQUEST`."),
    ],
)
def test_missing_argument_shows_the_usage_of_the_command(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert says in one_line(capsys.readouterr().err)


def test_unexpected_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["balance", "status", "now", "please"]) == 2
    said = one_line(capsys.readouterr().err)
    assert "`stele balance status` does not take 'now please'. See `stele balance status" in said


def test_unknown_dry_run_option_leads_to_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decommission", "n1", "--dry-run"]) == 2
    assert "`stele plan` shows what a command would do" in one_line(capsys.readouterr().err)


def test_local_addresses_bypass_the_proxy(
    stele: Stele, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy cannot reach local addresses."""
    cluster(server)
    server.answer("GET", "/v1/progress", IDLE)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, DEAD)
    stele.ok("status", "--timeout", "2")
    assert not is_here("http://10.0.0.1:80") and not is_here("http://db.example")


def test_user_without_a_name_is_recorded_by_number(
    stele: Stele, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may run with any user number."""
    server.answer("POST", "/v1/commands", ACCEPTED)
    for name in ("STELE_ACTOR", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 3_999_999)
    assert stele("settings", "set", "stream_concurrency", "4").exit_code == 0
    (asked,) = server.asked_for("/v1/commands")
    assert msgspec.json.decode(asked.body)["actor"] == "uid-3999999"


@pytest.mark.parametrize("columns", ["", "0", "wide"])
def test_invalid_terminal_width_is_ignored(
    stele: Stele, server: Server, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    cluster(server)
    plain = stele("nodes").out
    monkeypatch.setenv("COLUMNS", columns)
    assert stele("nodes").out == plain


def test_unwritable_folder_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "run"
    assert run(["stack", "up", "--detach", "--without", "placements", "--dir", str(place)]) == 1
    assert str(place) in one_line(capsys.readouterr().err)


def test_library_installation_says_that_the_command_line_is_missing() -> None:
    without = (
        "import sys; sys.modules['cyclopts'] = None; from stele.cli.__main__ import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("The command line is not installed here, only a library (cyclopts")
