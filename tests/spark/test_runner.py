"""Restarts of the query, with pauses. Without its JVM the process must end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stele.placements import runner as module
from stele.placements.runner import Phase, Runner, reason_of
from tests.polling import wait_until


class FakeJob:
    """A query that fails with ``text``, or runs until it is stopped."""

    progressed = False

    def __init__(self, text: str) -> None:
        self.text = text
        self.stopped = False

    def start(self) -> None:
        pass

    def tend(self) -> None:
        if self.text:
            raise OSError(self.text)

    def stop(self) -> None:
        self.stopped = True


class FakeProcess:
    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


class FakeSession:
    def __init__(self) -> None:
        self.stopped = False
        self.sparkContext = self._gateway = self._jsc = self
        self.proc: FakeProcess | None = FakeProcess()
        self.context_ended = False

    def sc(self) -> FakeSession:
        return self

    def isStopped(self) -> bool:  # noqa: N802 - Spark's name
        return self.context_ended

    def stop(self) -> None:
        self.stopped = True


def make(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Runner, FakeSession, list[int], threading.Event]:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "WATCH_S", 0.001)
    session, restarts, ended = FakeSession(), list[int](), threading.Event()

    def make_job(*_: object) -> FakeJob:
        job = FakeJob(texts.pop(0))
        if job.text == "the JVM is dead":
            assert session.proc is not None
            session.proc.returncode = 137
        session.context_ended = job.text == "the master took the application away"
        return job

    runner = Runner(
        lambda _: session,
        make_job,  # type: ignore[arg-type]
        lambda: restarts.append(1),
        ended.set,
    )
    runner.start()
    return runner, session, restarts, ended


def test_failed_query_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, session, restarts, ended = make(["disk full", "broker away", ""], monkeypatch)
    wait_until(lambda: len(restarts) == 2 and runner.phase is Phase.RUNNING, "the third query")
    assert not ended.is_set()
    assert runner.stop(5)
    assert session.stopped
    assert runner.phase is Phase.STOPPED


def test_runner_ends_with_the_reason_if_its_jvm_died(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _, restarts, ended = make(["disk full", "the JVM is dead"], monkeypatch)
    wait_until(ended.is_set, "the end")
    assert (runner.phase, len(restarts)) == (Phase.FAILED, 1)
    assert "JVM ended with 137" in runner.reason
    assert "the JVM is dead" in runner.reason


@pytest.mark.parametrize("is_child", [True, False])
def test_runner_ends_if_its_spark_context_ended(
    is_child: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["disk full", "the master took the application away"]
    runner, session, restarts, ended = make(texts, monkeypatch)
    if not is_child:  # spark-submit started both
        session.proc = None
    wait_until(ended.is_set, "the end")
    assert (runner.phase, len(restarts)) == (Phase.FAILED, 1)
    assert "context has ended" in runner.reason


def test_runner_ends_if_the_session_does_not_start() -> None:
    ended = threading.Event()

    def no_session(_: Path) -> object:
        raise RuntimeError("no memory")

    runner = Runner(no_session, lambda *_: None, on_end=ended.set)  # type: ignore[arg-type]
    runner.start()
    wait_until(ended.is_set, "the end")
    assert runner.phase is Phase.FAILED
    assert "no memory" in runner.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[STREAM_FAILED] Query [id = a] terminated with exception: disk full\n"
            "=== Streaming Query ===\nstele: no schema of Epoch. Upgrade this process.",
            "[STREAM_FAILED] Query [id = a] terminated with exception: disk full",
        ),
        (
            "[STREAM_FAILED] An exception was raised by the Python Proxy. Return Message: Traceback\n"
            '  File "x"\nstele.placements.tables.TableLost: events cannot be read\n\n\tat py4j.P\n',
            "stele.placements.tables.TableLost: events cannot be read",
        ),
        (
            "Generic LocalFileSystem error\n          \x1b[31m↳\x1b[0m Unable to copy data to file\n"
            "          \x1b[31m↳\x1b[0m No space left on device (os error 28)\n",
            "Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)",
        ),
        ("\n  connection refused\n\tat x", "connection refused"),
        ("", "OSError('')"),
    ],
)
def test_failure_reason_is_one_line_without_plan_and_traces(text: str, reason: str) -> None:
    assert reason_of(OSError(text)) == reason
