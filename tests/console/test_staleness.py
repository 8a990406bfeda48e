"""Reasons why the shown state may be stale before anything has failed."""

from __future__ import annotations

from stele.console.alerts import HEARD_S, LATE_EPOCHS, QUIET_S, ProcessStatus, stale_reason


def process(epoch: int = 9, *, up: bool = True, reason: str = "") -> ProcessStatus:
    return ProcessStatus(
        service="metadata-log",
        url="http://x",
        up=up,
        ok=up and not reason,
        epoch=epoch,
        reason=reason,
    )


AWAY = process(0, up=False, reason="no answer within 2 s")
"""The process is paused or partitioned. Its stream is not broken."""
CUT_OFF = process(reason="The log cannot be reached.")
"""The process answers, and reports that it does not read the log."""


def test_healthy_metadata_log_with_recent_events_is_not_stale() -> None:
    assert stale_reason(9, 0.1, [process()]) == ""
    assert stale_reason(9, QUIET_S - 1, [process(), AWAY, CUT_OFF]) == ""
    assert stale_reason(9, 0.1, []) == ""


def test_silent_metadata_log_is_stale_unless_an_event_just_arrived() -> None:
    assert "does not answer: no answer within 2 s" in stale_reason(9, HEARD_S + 0.1, [AWAY])
    assert stale_reason(9, HEARD_S - 0.1, [AWAY]) == ""
    assert "does not answer" in stale_reason(9, QUIET_S + 1, [AWAY]), (
        "the cause, not the silence it makes"
    )


def test_metadata_log_that_does_not_read_the_log_is_stale() -> None:
    assert "is not well: The log cannot be reached." in stale_reason(9, 0.1, [AWAY, CUT_OFF])


def test_stream_without_heartbeats_is_stale() -> None:
    assert "sent nothing for 13 s" in stale_reason(9, QUIET_S + 1, [process()])


def test_console_that_lags_far_behind_is_stale() -> None:
    assert stale_reason(9, 0.1, [process(9 + LATE_EPOCHS)]) == ""
    assert "is 101 epochs behind" in stale_reason(9, 0.1, [process(10 + LATE_EPOCHS)])
