"""When what is shown may be old, though nothing has failed yet."""

from __future__ import annotations

from stele.console.alerts import LATE_EPOCHS, ProcessShown
from stele.console.doubt import HEARD_S, QUIET_S, doubt


def process(epoch: int = 9, *, up: bool = True, reason: str = "") -> ProcessShown:
    return ProcessShown(
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


def test_a_metadata_log_that_is_well_and_heard_leaves_no_doubt() -> None:
    assert doubt(9, 0.1, [process()]) == ""
    assert doubt(9, QUIET_S - 1, [process(), AWAY, CUT_OFF]) == ""
    assert doubt(9, 0.1, []) == ""


def test_one_that_does_not_answer_is_doubted_unless_it_was_heard_just_now() -> None:
    assert "does not answer: no answer within 2 s" in doubt(9, HEARD_S + 0.1, [AWAY])
    assert doubt(9, HEARD_S - 0.1, [AWAY]) == ""
    assert "does not answer" in doubt(9, QUIET_S + 1, [AWAY]), "the cause, not the silence it makes"


def test_one_that_does_not_read_the_log_is_doubted_though_its_stream_lives() -> None:
    assert "is not well: The log cannot be reached." in doubt(9, 0.1, [AWAY, CUT_OFF])


def test_a_stream_without_a_sign_of_life_is_doubted() -> None:
    assert "said nothing for 13 s" in doubt(9, QUIET_S + 1, [process()])


def test_a_console_that_is_far_behind_says_so() -> None:
    assert doubt(9, 0.1, [process(9 + LATE_EPOCHS)]) == ""
    assert "is 101 epochs behind" in doubt(9, 0.1, [process(10 + LATE_EPOCHS)])
