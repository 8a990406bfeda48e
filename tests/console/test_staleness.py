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
"""It stands still, or its machine is cut off: the stream itself is not broken."""
CUT_OFF = process(reason="The log cannot be reached.")
"""It answers, and knows itself that it does not read the log."""


def test_a_metadata_log_that_is_well_and_heard_is_not_stale() -> None:
    assert stale_reason(9, 0.1, [process()]) == ""
    assert stale_reason(9, QUIET_S - 1, [process(), AWAY, CUT_OFF]) == ""
    assert stale_reason(9, 0.1, []) == ""


def test_one_that_does_not_answer_is_doubted_unless_it_was_heard_just_now() -> None:
    assert "does not answer: no answer within 2 s" in stale_reason(9, HEARD_S + 0.1, [AWAY])
    assert stale_reason(9, HEARD_S - 0.1, [AWAY]) == ""
    assert "does not answer" in stale_reason(9, QUIET_S + 1, [AWAY]), (
        "the cause, not the silence it makes"
    )


def test_one_that_does_not_read_the_log_is_doubted_though_its_stream_lives() -> None:
    assert "is not well: The log cannot be reached." in stale_reason(9, 0.1, [AWAY, CUT_OFF])


def test_a_stream_without_a_sign_of_life_is_doubted() -> None:
    assert "sent nothing for 13 s" in stale_reason(9, QUIET_S + 1, [process()])


def test_a_console_that_is_far_behind_says_so() -> None:
    assert stale_reason(9, 0.1, [process(9 + LATE_EPOCHS)]) == ""
    assert "is 101 epochs behind" in stale_reason(9, 0.1, [process(10 + LATE_EPOCHS)])
