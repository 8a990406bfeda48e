"""The reader of a live flow: when it ends, its service ends with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka.errors import (  # type: ignore[import-untyped]
    TopicAuthorizationFailedError,
)

from stele.runtime import live_flow
from stele.runtime.follow import run_beside
from stele.runtime.live_flow import (
    LOST_LOOKS,
    FetchAnswer,
    FlowLost,
    LiveFlow,
    LiveReader,
    Stall,
    _refused,
    reading_live,
)
from stele.runtime.service import Stop
from stele.runtime.settings import ServiceSettings

LIMIT_S = 240.0
ACKS = LiveFlow("session-guard", "acks", 1000)


class FakeApp(SimpleNamespace):
    """The part of a Faust application that the reader uses."""

    crashed = False
    should_stop = False
    crash_reason: Exception | None = None


@pytest.fixture
def app() -> FakeApp:
    return FakeApp(consumer=SimpleNamespace(fetched=dict))


@pytest.fixture
def reader(tmp_path: Path, app: FakeApp) -> Iterator[LiveReader]:
    settings = ServiceSettings(cluster="c", instance_id="guard-1")
    confirmed = list[tuple[float, float]]()
    made = LiveReader(
        settings, ACKS, str(tmp_path), lambda *_: None, lambda *at: confirmed.append(at)
    )
    made.app = app
    made.confirmed = confirmed  # type: ignore[attr-defined]
    yield made


@pytest.mark.parametrize("how", ["crashed", "should_stop"])
async def test_service_ends_with_the_reason_if_its_reader_ends(
    reader: LiveReader, app: FakeApp, how: str
) -> None:
    stop = Stop()
    with pytest.raises(FlowLost, match="not authorized"):
        async with run_beside(asyncio.ensure_future(reader.watch()), stop):
            assert not stop.requested
            app.crash_reason = RuntimeError("not authorized for acks")
            setattr(app, how, True)
            await asyncio.wait_for(stop.wait(), LIMIT_S)
            assert stop.reason


async def test_reader_confirms_progress_and_reports_a_stall(
    reader: LiveReader, app: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_flow, "STALLED_S", 0.5)
    monkeypatch.setattr(reader, "_why_stalled", lambda: Stall("the topic is gone"))
    reader._tail.start({0: 0}, {0: 0}, 0.0)
    answers = iter(range(4))
    app.consumer.fetched = lambda: {0: FetchAnswer(0, next(answers, 3))}
    task = asyncio.create_task(reader.watch())
    try:
        async with asyncio.timeout(LIMIT_S):
            while not reader.trouble:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert reader.trouble == "the topic is gone"
        assert reader.confirmed  # type: ignore[attr-defined]
        app.consumer.fetched = lambda: {0: FetchAnswer(0, object())}
        async with asyncio.timeout(LIMIT_S):
            while reader.trouble:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STALLED_S", "ASK_WHY_S", "LOOK_S"):
        monkeypatch.setattr(live_flow, name, 0.001)


@pytest.mark.usefixtures("quick")
async def test_reader_that_hangs_with_available_brokers_ends_the_process(
    reader: LiveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Stall]()

    def why() -> Stall:
        """Brokers are unavailable for long, then a backlog is read, then the reader hangs."""
        away, busy = len(asked) < 3 * LOST_LOOKS, len(asked) < 6 * LOST_LOOKS
        reader._records += busy
        asked.append(Stall("away") if away else Stall("hangs", is_readable=True))
        return asked[-1]

    monkeypatch.setattr(reader, "_why_stalled", why)
    with pytest.raises(FlowLost, match="hangs: the brokers answer"):
        await asyncio.wait_for(reader.watch(), LIMIT_S)
    assert len(asked) == 7 * LOST_LOOKS + 1


@pytest.mark.parametrize(
    ("leader", "ends", "why", "is_readable"),
    [
        (
            1,
            TimeoutError("no answer within 3.0 s"),
            "do not answer (no answer within 3.0 s)",
            False,
        ),
        (-1, None, "partitions [0] have no leader", False),
        (1, None, "though the leaders of all partitions answer", True),
    ],
)
def test_only_an_answer_of_each_leader_shows_that_the_flow_can_be_read(
    reader: LiveReader,
    monkeypatch: pytest.MonkeyPatch,
    leader: int,
    ends: Exception | None,
    why: str,
    is_readable: bool,
) -> None:
    """A broker that answers may name a leader that hangs."""
    partitions = {0: SimpleNamespace(id=0, leader=leader)}
    topic = SimpleNamespace(error=None, partitions=partitions)
    consumer = SimpleNamespace(
        list_topics=lambda *_, **__: SimpleNamespace(topics={reader._topic: topic}),
        poll=lambda _: None,
        close=lambda: None,
    )
    monkeypatch.setattr(live_flow, "Consumer", lambda _: consumer)
    monkeypatch.setattr(live_flow, "resolve", Mock(side_effect=ends))
    stall = reader._why_stalled()
    assert why in stall.why
    assert stall.is_readable is is_readable


def test_consumer_group_has_the_instance_id_and_a_static_member(tmp_path: Path) -> None:
    settings = ServiceSettings(cluster="c", instance_id="guard-1")
    made = LiveReader(settings, ACKS, str(tmp_path), lambda *_: None, lambda *_: None)
    assert made.app.conf.id == "stele.c.session-guard.guard-1"
    assert made.app.conf.consumer_group_instance_id == "guard-1"


async def test_reader_that_does_not_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faust waits without end for the leaders that the brokers named."""
    monkeypatch.setattr(live_flow, "START_TIMEOUT_S", 0.01)
    started, stopped = [AsyncMock(), AsyncMock(side_effect=asyncio.Event().wait)], AsyncMock()

    def make(*_: object) -> SimpleNamespace:
        return SimpleNamespace(app=SimpleNamespace(start=started.pop(), stop=stopped))

    monkeypatch.setattr(live_flow, "LiveReader", make)
    settings = ServiceSettings(cluster="c", instance_id="guard-1")
    async with reading_live(settings, ACKS, lambda *_: None, lambda *_: None):
        assert not started
        assert stopped.await_count == 1
    assert stopped.await_count == 2


def test_refused_reader_ends_with_a_hint() -> None:
    said = _refused(TopicAuthorizationFailedError("stele.library.acks"))
    assert "Topic authorization failed. Give its user the ACLs of" in said
    assert _refused(ZeroDivisionError()) == _refused(None) == ""
