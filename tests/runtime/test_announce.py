"""An announcement keeps its id until its outcome is service_log, and is repeated where the log differs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version

import pytest
from immutables import Map
from msgspec.structs import replace

from stele.domain.commands import Envelope, Rejection
from stele.domain.image import Image
from stele.domain.model.commits import Commits
from stele.domain.model.requests import state_time_ms, time_ms
from stele.domain.model.services import Service, ServicesImage
from stele.domain.names import CommitMode
from stele.domain.registry import KNOWN_FEATURES
from stele.log.commander import NotTakenError
from stele.runtime import announce as module
from stele.runtime.announce import (
    Announcer,
    Build,
    announced,
    announcement,
    growing_pauses,
    own_service,
)
from stele.runtime.settings import ServiceSettings
from tests.domain.history import three_nodes
from tests.polling import until


class RecordedAnnouncements:
    """Records announcements. Each gets the next of ``answers``, and the last answer is repeated."""

    def __init__(self, *answers: Exception | int | None) -> None:
        self.ids: list[str] = []
        self.answers = list(answers)

    async def announce(self, envelope: Envelope, bootstrap: str, cluster: str) -> int | None:
        self.ids.append(envelope.request_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def has(self, count: int) -> bool:
        return len(self.ids) >= count


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> Image:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "LAST_PAUSE_S", 0.001)
    return three_nodes()[0].image


@pytest.fixture
async def settings() -> AsyncIterator[ServiceSettings]:
    yield ServiceSettings(cluster="demo", instance_id="c-1")


async def announced_ids(
    monkeypatch: pytest.MonkeyPatch,
    image: Image,
    settings: ServiceSettings,
    answers: RecordedAnnouncements,
    count: int,
) -> list[str]:
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: image, lambda: True):
        await until(lambda: len(answers.ids) >= count, f"{count} announcements")
    return answers.ids[:count]


async def test_unanswered_announcement_is_retried_with_the_same_id(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    answers = RecordedAnnouncements(TimeoutError("no answer"), OSError("too many files"))
    ids = await announced_ids(monkeypatch, image, settings, answers, 5)
    assert len({*ids}) == 1


async def test_announcement_id_has_the_time_of_the_log_if_the_clock_is_ahead(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    (asked_id,) = await announced_ids(monkeypatch, image, settings, RecordedAnnouncements(None), 1)
    assert time_ms(asked_id) == state_time_ms(image.state_id)


async def test_refused_announcement_is_retried_with_a_new_id(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    not_taken = NotTakenError("1", Rejection("request_id_expired", "too old", "send a new one"))
    ids = await announced_ids(
        monkeypatch, image, settings, RecordedAnnouncements(not_taken, None), 5
    )
    assert len({*ids}) == 5


async def test_id_after_an_expired_announcement_is_later_than_the_horizon(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    far_ms = 4_000_000_000_000
    too_old = Rejection("request_id_expired", "too old", details={"horizon_ms": str(far_ms)})
    answers = RecordedAnnouncements(NotTakenError("1", too_old), None)
    _, second = await announced_ids(monkeypatch, image, settings, answers, 2)
    assert time_ms(second) > far_ms


async def test_retry_after_a_moved_horizon_has_no_pause(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    """A log with a short memory moves the horizon during a pause, and would never accept the announcement."""
    far_ms = 4_000_000_000_000
    too_old = [
        NotTakenError(
            "1", Rejection("request_id_expired", "too old", details={"horizon_ms": str(ms)})
        )
        for ms in (far_ms, far_ms + 1_000)
    ]
    answers = RecordedAnnouncements(*too_old, image.epoch + 1)
    monkeypatch.setattr(module, "announce", answers.announce)
    make = partial(announcement, own_service("coordinator", "c-1"))
    announcer = Announcer(make, settings.brokers, settings.cluster)
    assert await announcer.send(image.state_id) == image.epoch + 1
    assert [time_ms(each) for each in answers.ids[1:]] == [far_ms + 1, far_ms + 1_001]


async def test_announced_process_does_not_announce_itself_again(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    answers = RecordedAnnouncements(image.epoch + 1)
    await announced_ids(monkeypatch, image, settings, answers, 1)
    await asyncio.sleep(0.05)
    assert len(answers.ids) == 1
    assert own_service("coordinator", "c-1") == Service(
        service_id="coordinator/c-1",
        supported_features=tuple(sorted(KNOWN_FEATURES)),
        release_version=version("stele"),
    )
    older = own_service("coordinator", "c-1", Build("older", frozenset()))
    assert (older.supported_features, older.release_version) == ((), "older")


OWN = own_service("coordinator", "c-1")
EARLIER = replace(OWN, release_version="earlier", supported_features=())


class ServiceLog:
    """The row of ``coordinator/c-1`` in the log. ``image`` is the state that the process reads."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def set_row(self, row: Service | None) -> None:
        rows = Map[str, Service]() if row is None else Map({row.service_id: row})
        self.image = replace(
            self.image, epoch=self.image.epoch + 1, services=ServicesImage(services=rows)
        )


@pytest.fixture
async def service_log(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> AsyncIterator[ServiceLog]:
    """Return the log of a running process that is announced in it."""
    monkeypatch.setattr(module, "growing_pauses", lambda: itertools.repeat(0.001))
    service_log = ServiceLog(image)
    service_log.set_row(OWN)
    yield service_log


async def test_process_replaces_the_late_announcement_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
    service_log: ServiceLog,
    settings: ServiceSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The announcement of the earlier process was decided late. Each correction has a separate id, which is
    retried until it is answered.
    """
    answers = RecordedAnnouncements(TimeoutError("no answer"), None)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: service_log.image, lambda: True):
        await asyncio.sleep(0.02)
        assert not answers.ids, "its row was right"
        service_log.set_row(EARLIER)
        await until(partial(answers.has, 3), "three announcements")
        service_log.set_row(OWN)
        await asyncio.sleep(0.02)
        before = len(answers.ids)
        await asyncio.sleep(0.02)
        assert len(answers.ids) == before, "its row is right again"
        service_log.set_row(EARLIER)
        await until(lambda: len(answers.ids) > before, "another")
    first, again, refused = answers.ids[:3]
    assert first == again
    assert len({again, refused, answers.ids[-1]}) == 3
    said = capsys.readouterr().out
    assert "the log says something else of this service" in said
    assert "STELE_INSTANCE_ID" in said
    assert "earlier" in said


async def test_announcement_is_repeated_only_after_the_first_was_read(
    monkeypatch: pytest.MonkeyPatch, service_log: ServiceLog, settings: ServiceSettings
) -> None:
    service_log.set_row(EARLIER)
    answers = RecordedAnnouncements(service_log.image.epoch + 2)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: service_log.image, lambda: True):
        await until(lambda: answers.ids, "the announcement")
        service_log.set_row(EARLIER)
        await asyncio.sleep(0.02)
        assert len(answers.ids) == 1
        service_log.set_row(EARLIER)
        await until(partial(answers.has, 2), "the second, as that one was overtaken")


async def test_two_processes_with_one_id_announce_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, service_log: ServiceLog, settings: ServiceSettings
) -> None:
    """Pauses between corrections grow, also if the row was correct in between."""
    assert list(itertools.islice(growing_pauses(), 8)) == [1, 2, 4, 8, 16, 32, 60, 60]
    monkeypatch.setattr(module, "growing_pauses", lambda: iter([0.001, 0.001, 3600.0]))
    answers = RecordedAnnouncements(None)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: service_log.image, lambda: True):
        await asyncio.sleep(0.02)
        for count in (1, 2, 3):
            service_log.set_row(EARLIER)
            await until(partial(answers.has, count), "the correction")
            service_log.set_row(OWN)
            await asyncio.sleep(0.02)
        service_log.set_row(EARLIER)
        await asyncio.sleep(0.05)
    assert len(answers.ids) == 3


async def test_no_announcement_is_sent_while_the_log_is_frozen(
    monkeypatch: pytest.MonkeyPatch, service_log: ServiceLog, settings: ServiceSettings
) -> None:
    answers = RecordedAnnouncements(None)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: service_log.image, lambda: True):
        await asyncio.sleep(0.02)
        service_log.image = replace(service_log.image, commits=Commits(mode=CommitMode.FROZEN))
        service_log.set_row(EARLIER)
        await asyncio.sleep(0.02)
        assert not answers.ids
        service_log.image = replace(service_log.image, commits=Commits())
        await until(lambda: answers.ids, "the announcement")
