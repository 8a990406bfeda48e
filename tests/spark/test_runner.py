"""The query's life: a failed batch is tried again from the checkpoint, a broken log is not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stele.placements import runner as module
from stele.placements.failures import failure_of
from stele.placements.runner import Phase, Runner
from tests.polling import wait_until


class FakeQuery:
    """A query that ends with ``text`` at once, or runs until it is stopped."""

    lastProgress = None  # noqa: N815  (Spark's name)

    def __init__(self, text: str) -> None:
        self.text = text
        self.running = threading.Event()
        if not text:
            self.running.set()

    @property
    def isActive(self) -> bool:  # noqa: N802  (Spark's name)
        return self.running.is_set()

    def exception(self) -> str:
        return self.text

    def stop(self) -> None:
        self.running.clear()


class FakeJob:
    def __init__(self, text: str) -> None:
        self.query = FakeQuery(text)

    def start(self) -> FakeQuery:
        return self.query


class FakeSession:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


def make(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Runner, FakeSession, list[int]]:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    session, restarts = FakeSession(), list[int]()
    runner = Runner(
        lambda _: session,  # type: ignore[arg-type,return-value]
        lambda _: FakeJob(texts.pop(0)),  # type: ignore[arg-type,return-value]
        lambda: restarts.append(1),
    )
    runner.start()
    return runner, session, restarts


def test_a_failed_query_starts_again_and_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, session, restarts = make(["disk full", "broker away", ""], monkeypatch)
    wait_until(lambda: len(restarts) == 2 and runner.phase is Phase.RUNNING, "the third query")
    assert runner.stop(5)
    assert session.stopped
    assert runner.phase is Phase.STOPPED


def test_an_unreadable_log_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, session, restarts = make(["x\nstele-unreadable: At offset 3: why\n y"], monkeypatch)
    wait_until(lambda: session.stopped, "the session to stop")
    assert (runner.phase, runner.reason, restarts) == (Phase.FAILED, "At offset 3: why", [])


def test_a_session_that_does_not_start_is_told() -> None:
    def no_session(_: Path) -> object:
        raise RuntimeError("no memory")

    runner = Runner(no_session, lambda _: None)  # type: ignore[arg-type,return-value]
    runner.start()
    wait_until(lambda: runner.phase is Phase.FAILED, "the failure")
    assert "no memory" in runner.reason


@pytest.mark.parametrize(
    ("text", "reason", "final"),
    [
        ("[E] a\n stele-unreadable: At offset 7: b\n c", "At offset 7: b", True),
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] x", "are gone from the log", True),
        ("\n  connection refused\nat x", "connection refused", False),
        ("", "no reason given", False),
    ],
)
def test_a_failure_is_one_sentence_and_says_whether_a_restart_helps(
    text: str, reason: str, final: bool
) -> None:
    failure = failure_of(text)
    assert reason in failure.reason
    assert failure.final is final
