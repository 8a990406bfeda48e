"""A service process: announcement, orderly stop, exit codes, settings, logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from stele.log.brokers import Brokers
from stele.log.flows import FlowReader
from stele.runtime import service
from stele.runtime.service import wait_at_most
from stele.runtime.settings import ConfigurationError, ServiceSettings, load_settings
from stele_harness.stack.ports import free_port
from stele_harness.stack.process import Process, Program, spawn
from tests.polling import wait_until

Run = Callable[..., Process]

SERVICE = """
from stele.runtime.http import Health, build_app, serve
from stele.runtime.logs import configure_logs, get_logger
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import ServiceSettings, load_settings

async def main(stop: Stop) -> None:
    settings = load_settings(ServiceSettings)
    configure_logs(service="trial", instance=settings.instance_id, level=settings.log_level)
    get_logger("trial").info("applied", epoch=12, request_id="r1")
    app = build_app("trial", [], lambda: Health(ok=True, epoch=12))
    await serve(app, settings, "trial", stop)

raise SystemExit(run_service(main))
"""

STUBBORN = """
import asyncio
from stele.runtime.service import Stop, run_service

async def main(stop: Stop) -> None:
    print("up", flush=True)
    await stop.wait()
    await asyncio.Event().wait()

raise SystemExit(run_service(main, stop_deadline_s=0.2))
"""

WITHOUT_BROKERS = """
from stele.runtime.http import listening
from stele.runtime.kafka import wait_for_topics
from stele.runtime.logs import configure_logs
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import ServiceSettings, load_settings

async def main(stop: Stop) -> None:
    configure_logs(service="trial", instance="t", level="info")
    settings = load_settings(ServiceSettings)
    async with listening(settings, "trial"):
        await wait_for_topics(settings)

raise SystemExit(run_service(main))
"""

WITH_A_SECRET = """
from stele.runtime.service import run_service
from stele.runtime.settings import ServiceSettings
from stele.runtime.service import started

async def main(stop):
    started("trial", ServiceSettings)
    password = " ".join(["in", "the", "clear"])
    raise ZeroDivisionError

raise SystemExit(run_service(main))
"""

WITH_A_CLIENT_THAT_WAITS = """
import atexit, threading
from stele.log.loops import beside
from stele.runtime.service import run_service

async def main(stop):
    beside("client", threading.Event().wait)
    atexit.register(print, "exit handlers run")
    print("done")

raise SystemExit(run_service(main))
"""

FAILING = """
from stele.runtime.service import run_service

async def main(stop):
    raise ZeroDivisionError

raise SystemExit(run_service(main))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(source: str, **env: str) -> Process:
        command = Program(
            "trial",
            [sys.executable, "-c", source],
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            env={**os.environ, **env},
        )
        return spawn(command)

    return start


def text_of(process: Process) -> str:
    return process.command.stderr.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_prints_its_address_answers_and_exits_with_0(
    run: Run, number: signal.Signals
) -> None:
    process = run(SERVICE, STELE_INSTANCE_ID="trial-1")
    wait_until(process.stdout_of_this_run, "the announcement")
    announcement = json.loads(process.stdout_of_this_run())
    assert announcement["service"] == "trial"
    assert announcement["instance"] == "trial-1"
    assert httpx.get(f"{announcement['http']}/healthz", timeout=240).json()["epoch"] == 12
    process.signal(number)
    assert process.wait(150) == 0


def test_log_lines_have_service_instance_epoch_and_request_id(run: Run) -> None:
    process = run(SERVICE, STELE_INSTANCE_ID="trial-1")
    wait_until(process.stdout_of_this_run, "the announcement")
    process.stop()
    lines = [json.loads(line) for line in text_of(process).splitlines()]
    applied = next(line for line in lines if line["event"] == "applied")
    assert (applied["service"], applied["instance"]) == ("trial", "trial-1")
    assert (applied["epoch"], applied["request_id"]) == (12, "r1")
    assert any(line["event"] == "stopping" and line["reason"] == "SIGTERM" for line in lines)


def test_service_that_does_not_stop_in_time_exits_with_70(run: Run) -> None:
    process = run(STUBBORN)
    wait_until(process.stdout_of_this_run, "the first line")
    process.signal(signal.SIGTERM)
    assert process.wait(90) == 70


def test_service_that_waits_for_brokers_logs_it_and_stops_cleanly(run: Run) -> None:
    """A call to an unavailable broker cannot be interrupted. A process waiting for it would exit with 70."""
    process = run(WITHOUT_BROKERS, STELE_KAFKA_BOOTSTRAP=f"127.0.0.1:{free_port()}")
    wait_until(lambda: "Kafka has not answered yet" in text_of(process), "the warning")
    assert "STELE_KAFKA_BOOTSTRAP" in text_of(process)
    process.signal(signal.SIGTERM)
    assert process.wait(90) == 0
    assert "Traceback" not in text_of(process)


def test_service_that_waits_for_brokers_answers_with_the_reason(run: Run) -> None:
    port = free_port()
    bootstrap = f"127.0.0.1:{free_port()}"
    run(WITHOUT_BROKERS, STELE_KAFKA_BOOTSTRAP=bootstrap, STELE_HTTP_PORT=str(port))

    def answers(path: str) -> str:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=240)
        except httpx.TransportError:
            return ""
        assert answer.status_code == 503
        return answer.text

    wait_until(lambda: "Could not list the topics" in answers("/healthz"), "the reason")
    assert json.loads(answers("/v1/anything"))["code"] == "unavailable"


def test_internal_error_exits_with_70_and_a_trace(run: Run) -> None:
    process = run(FAILING)
    assert process.wait(150) == 70
    assert "ZeroDivisionError" in text_of(process)


def test_client_that_still_waits_meets_no_exit_handlers(run: Run) -> None:
    """Its threads use OpenSSL, whose exit handler would free what they use."""
    process = run(WITH_A_CLIENT_THAT_WAITS)
    assert process.wait(150) == 0
    assert process.command.stdout.read_text() == "done\n"


@pytest.mark.parametrize("json_lines", [True, False])
def test_trace_shows_no_local_variables(run: Run, json_lines: bool) -> None:
    process = run(WITH_A_SECRET, STELE_LOG_JSON=str(json_lines).lower())
    assert process.wait(150) == 70
    assert "ZeroDivisionError" in text_of(process)
    assert "in the clear" not in text_of(process)


def test_invalid_setting_exits_with_78_and_its_name(run: Run) -> None:
    process = run(SERVICE, STELE_HTTP_PORT="many")
    assert process.wait(150) == 78
    assert "STELE_HTTP_PORT='many'" in text_of(process)
    assert "Traceback" not in text_of(process)


def test_all_invalid_settings_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_CLUSTER", "no spaces")
    monkeypatch.setenv("STELE_REQUEST_TIMEOUT_S", "-1")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(ServiceSettings)
    assert "STELE_CLUSTER" in str(caught.value)
    assert "STELE_REQUEST_TIMEOUT_S" in str(caught.value)


def test_addresses_are_split_at_commas_and_lose_the_slash_at_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STELE_METADATA_LOG_URLS", "http://a:1, http://b:2/,")
    assert load_settings(ServiceSettings).metadata_log_urls == ("http://a:1", "http://b:2")


@pytest.mark.parametrize("text", ["http://a:1 http://b:2", '["http://a:1"]', "a:1"])
def test_start_fails_on_an_invalid_address_list(text: str) -> None:
    with pytest.raises(ConfigurationError, match="STELE_CATCH_UP_URLS"):
        load_settings(ServiceSettings, {"STELE_CATCH_UP_URLS": text})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("STELE_HTTP_PROT", "STELE_HTTP_PORT"),
        ("STELE_CATCHUP_URLS", "STELE_CATCH_UP_URLS"),
        ("STELE_METADATA_LOG_URL", "STELE_METADATA_LOG_URLS"),
        ("STELE_HTTP_TLS_CERTIFICATE", "STELE_HTTP_TLS_CERTIFICATE_FILE"),
    ],
)
def test_misspelt_variable_is_logged(
    monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    monkeypatch.setenv(written, "x")
    monkeypatch.setattr(
        service, "configure_logs", lambda **_: None
    )  # keep the configuration of the tests
    with capture_logs() as lines:
        service.started("trial", ServiceSettings)
    assert [(line["variable"], meant in line["hint"]) for line in lines] == [(written, True)]


@pytest.mark.parametrize("turns", range(4))
async def test_cancel_at_the_time_of_the_event_is_not_lost(turns: int) -> None:
    """Otherwise a loop around the wait would never end."""
    event = asyncio.Event()

    async def work() -> None:
        while True:
            await wait_at_most(event, 30)
            event.clear()

    task = asyncio.create_task(work())
    while not event._waiters:  # noqa: ASYNC110
        await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=240)
    assert task.cancelled()


async def test_wait_ends_with_the_event_or_the_limit() -> None:
    event = asyncio.Event()
    await asyncio.wait_for(wait_at_most(event, 0.01), 240)
    event.set()
    await asyncio.wait_for(wait_at_most(event, 120), 240)


async def test_reader_start_cancelled_when_it_becomes_ready_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = FlowReader(Brokers("127.0.0.1:1"), "nothing", lambda value: None, lambda error: None)
    monkeypatch.setattr(reader._thread, "start", lambda: None)
    task = asyncio.create_task(reader.start())
    while not reader._ready._waiters:  # noqa: ASYNC110
        await asyncio.sleep(0)
    reader._ready.set()
    task.cancel()
    await asyncio.wait((task,), timeout=240)
    assert task.cancelled()


@pytest.mark.parametrize(
    ("argument", "code", "said"),
    [("--help", 0, "usage: python -m stele.coordinator"), ("--port=1", 64, "no such argument")],
)
def test_a_service_takes_no_arguments(tmp_path: Path, argument: str, code: int, said: str) -> None:
    argv = [sys.executable, "-m", "stele.coordinator", argument]
    started = spawn(Program("coordinator", argv, tmp_path / "both", tmp_path / "both"))
    assert started.wait(150) == code
    assert said in (tmp_path / "both").read_text()
