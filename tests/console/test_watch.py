"""Answers of processes, the hub of events, and reasons why the shown state may be stale."""

from collections.abc import Mapping
from types import SimpleNamespace

import msgspec
import pytest

from stele.console.alerts import HEARD_S, LATE_EPOCHS, QUIET_S, ProcessStatus, stale_reason
from stele.console.upstream import AwayError
from stele.console.watch import KEPT, MOST_TEXT, Hub, Watch
from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.domain.model.schema_objects import SchemaVersion
from stele.runtime.answers.session_guard import SchemaAgreement
from stele.runtime.transport import HttpReply


class Upstream:
    """One process with this answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def one(self, url: str, limit_s: float) -> HttpReply:
        return HttpReply(200, self.body)


def watching(body: bytes) -> Watch:
    watch = object.__new__(Watch)
    watch._upstream = Upstream(body)  # type: ignore[assignment]
    return watch


@pytest.mark.parametrize(
    "body", [b'{"ok":true,"x":' + b"[" * 5000 + b"]" * 5000 + b"}", b"no JSON", b"[]"]
)
async def test_invalid_health_answer_marks_only_its_process(body: bytes) -> None:
    shown = await watching(body)._process("node n1", "http://n1")
    assert (shown.up, shown.ok) == (True, False)
    assert "none of a service of this project" in shown.reason


async def test_long_health_reasons_are_cut() -> None:
    body = b'{"ok":false,"epoch":0,"reason":"' + b"x" * 100_000 + b'"}'
    shown = await watching(body)._process("node n1", "http://n1")
    assert len(shown.reason) <= MOST_TEXT + 4


class Guard:
    """A session-guard with these answers by path. No other service answers."""

    services: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers

    async def ask(self, service: str, path: str, *, limit_s: float) -> HttpReply:
        if service != "session-guard" or path not in self.answers:
            raise AwayError(service, "it is away")
        return HttpReply(200, msgspec.json.encode(self.answers[path]))


@pytest.mark.parametrize("behind", [("n2",), ()])
async def test_poll_has_nodes_that_lag_behind_the_schema(
    behind: tuple[str, ...],
) -> None:
    agreement = SchemaAgreement(
        epoch=7,
        schema_version=SchemaVersion(7, "ab"),
        agreed=not behind,
        behind=behind,
        members=(),
    )
    mirror = SimpleNamespace(image=EMPTY_FOR_FOLLOWERS, trouble="", silent_s=lambda: 0.0)
    for answers in ({"/v1/schema/agreement": agreement}, {}):
        watch = Watch(Guard(answers), mirror, Hub(), 1.0)  # type: ignore[arg-type]
        assert (await watch._poll()).schema_behind == (behind if answers else ())


# The hub shares one stream with all pages: in order, each event once, with bounded memory.


def test_events_after_an_epoch_are_returned_in_order() -> None:
    hub = Hub()
    for epoch in range(5, 10):
        hub.add(epoch, b"%d" % epoch)
    assert hub.after(6) == [(7, b"7"), (8, b"8"), (9, b"9")]
    assert hub.after(4, most=2) == [(5, b"5"), (6, b"6")]
    assert hub.after(9) == []


def test_events_are_not_returned_across_a_gap() -> None:
    hub = Hub()
    for epoch in range(1, KEPT + 11):
        hub.add(epoch, b"")
    assert (hub.oldest, hub.newest) == (11, KEPT + 10)
    assert hub.after(9) == []
    assert [n for n, _ in hub.after(10, most=1)] == [11]


def test_bell_rings_for_all_earlier_waiters() -> None:
    hub = Hub()
    first = hub.bell()
    hub.add(1, b"")
    assert first.is_set()
    assert not hub.bell().is_set()


def test_restart_clears_events_and_counts_the_history() -> None:
    hub = Hub()
    hub.add(1, b"")
    bell = hub.bell()
    hub.restart()
    assert (hub.newest, hub.history) == (0, 1)
    assert bell.is_set()
    hub.add(7, b"")  # any epoch may follow


# Reasons why the shown state may be stale before anything has failed.


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
