"""An announcement keeps its id until its outcome is known, and is repeated where the log differs."""

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
from stele.domain.commits.model import Commits
from stele.domain.image import Image
from stele.domain.names import CommitMode
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.requests.model import state_time_ms, time_ms
from stele.domain.services.model import Service, ServicesImage
from stele.log.commander import NotTakenError
from stele.runtime import announce as module
from stele.runtime.announce import Announcer, announced, announcement, growing_pauses, own_service
from stele.runtime.build import Build
from stele.runtime.settings import ServiceSettings
from tests.domain.history import three_nodes
from tests.services.world import until


class Asked:
    """Requests, and their answers: the next of ``answers``, the last one repeatedly."""

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


async def asked(
    monkeypatch: pytest.MonkeyPatch,
    image: Image,
    settings: ServiceSettings,
    answers: Asked,
    count: int,
) -> list[str]:
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: image, lambda: True):
        await until(lambda: len(answers.ids) >= count, f"{count} announcements")
    return answers.ids[:count]


async def test_no_answer_is_asked_for_again_under_the_same_id(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    answers = Asked(TimeoutError("no answer"), OSError("too many files"))
    ids = await asked(monkeypatch, image, settings, answers, 5)
    assert len({*ids}) == 1


async def test_a_process_whose_clock_is_ahead_announces_itself_under_an_id_of_the_logs_time(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    (asked_id,) = await asked(monkeypatch, image, settings, Asked(None), 1)
    assert time_ms(asked_id) == state_time_ms(image.state_id)


async def test_what_was_not_taken_or_refused_is_asked_for_under_another(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    not_taken = NotTakenError("1", Rejection("request_id_expired", "too old", "send a new one"))
    ids = await asked(monkeypatch, image, settings, Asked(not_taken, None), 5)
    assert len({*ids}) == 5


async def test_an_announcement_after_one_that_was_too_old_is_behind_the_horizon(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    far_ms = 4_000_000_000_000
    too_old = Rejection("request_id_expired", "too old", details={"horizon_ms": str(far_ms)})
    answers = Asked(NotTakenError("1", too_old), None)
    _, second = await asked(monkeypatch, image, settings, answers, 2)
    assert time_ms(second) > far_ms


async def test_an_id_behind_the_horizon_is_sent_before_that_moves_on(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    """A log that remembers little has moved it again after a pause, and would never know the process."""
    far_ms = 4_000_000_000_000
    too_old = [
        NotTakenError(
            "1", Rejection("request_id_expired", "too old", details={"horizon_ms": str(ms)})
        )
        for ms in (far_ms, far_ms + 1_000)
    ]
    answers = Asked(*too_old, image.epoch + 1)
    monkeypatch.setattr(module, "announce", answers.announce)
    make = partial(announcement, own_service("coordinator", "c-1"))
    announcer = Announcer(make, settings.brokers, settings.cluster)
    assert await announcer.say(image.state_id) == image.epoch + 1
    assert [time_ms(each) for each in answers.ids[1:]] == [far_ms + 1, far_ms + 1_001]


async def test_who_is_known_says_nothing_more(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> None:
    answers = Asked(image.epoch + 1)
    await asked(monkeypatch, image, settings, answers, 1)
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


class Known:
    """The log, as far as ``coordinator/c-1`` goes: ``image`` is what the process reads of it."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def tells(self, row: Service | None) -> None:
        rows = Map[str, Service]() if row is None else Map({row.service_id: row})
        self.image = replace(
            self.image, epoch=self.image.epoch + 1, services=ServicesImage(services=rows)
        )


@pytest.fixture
async def known(
    monkeypatch: pytest.MonkeyPatch, image: Image, settings: ServiceSettings
) -> AsyncIterator[Known]:
    """A process that runs, and has found itself in the log."""
    monkeypatch.setattr(module, "growing_pauses", lambda: itertools.repeat(0.001))
    known = Known(image)
    known.tells(OWN)
    yield known


async def test_a_process_whose_row_is_of_an_earlier_one_announces_itself_anew(
    monkeypatch: pytest.MonkeyPatch,
    known: Known,
    settings: ServiceSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The announcement of the earlier one was decided late. Each wrong row has a separate id, which stays until
    it is answered.
    """
    answers = Asked(TimeoutError("no answer"), None)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: known.image, lambda: True):
        await asyncio.sleep(0.02)
        assert not answers.ids, "its row was right"
        known.tells(EARLIER)
        await until(partial(answers.has, 3), "three announcements")
        known.tells(OWN)
        await asyncio.sleep(0.02)
        before = len(answers.ids)
        await asyncio.sleep(0.02)
        assert len(answers.ids) == before, "its row is right again"
        known.tells(EARLIER)
        await until(lambda: len(answers.ids) > before, "another")
    first, again, refused = answers.ids[:3]
    assert first == again
    assert len({again, refused, answers.ids[-1]}) == 3
    said = capsys.readouterr().out
    assert "the log says something else of this service" in said
    assert "STELE_INSTANCE_ID" in said
    assert "earlier" in said


async def test_what_was_said_is_waited_for_before_it_is_said_again(
    monkeypatch: pytest.MonkeyPatch, known: Known, settings: ServiceSettings
) -> None:
    known.tells(EARLIER)
    answers = Asked(known.image.epoch + 2)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: known.image, lambda: True):
        await until(lambda: answers.ids, "the announcement")
        known.tells(EARLIER)
        await asyncio.sleep(0.02)
        assert len(answers.ids) == 1
        known.tells(EARLIER)
        await until(partial(answers.has, 2), "the second, as that one was overtaken")


async def test_two_processes_under_one_id_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, known: Known, settings: ServiceSettings
) -> None:
    """Pauses between what is said against the log grow, and a row that was right meanwhile changes nothing."""
    assert list(itertools.islice(growing_pauses(), 8)) == [1, 2, 4, 8, 16, 32, 60, 60]
    monkeypatch.setattr(module, "growing_pauses", lambda: iter([0.001, 0.001, 3600.0]))
    answers = Asked(None)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: known.image, lambda: True):
        await asyncio.sleep(0.02)
        for count in (1, 2, 3):
            known.tells(EARLIER)
            await until(partial(answers.has, count), "what is said against it")
            known.tells(OWN)
            await asyncio.sleep(0.02)
        known.tells(EARLIER)
        await asyncio.sleep(0.05)
    assert len(answers.ids) == 3


async def test_nothing_is_said_against_a_frozen_log_before_it_is_thawed(
    monkeypatch: pytest.MonkeyPatch, known: Known, settings: ServiceSettings
) -> None:
    answers = Asked(None)
    monkeypatch.setattr(module, "announce", answers.announce)
    async with announced("coordinator", settings, lambda: known.image, lambda: True):
        await asyncio.sleep(0.02)
        known.image = replace(known.image, commits=Commits(mode=CommitMode.FROZEN))
        known.tells(EARLIER)
        await asyncio.sleep(0.02)
        assert not answers.ids
        known.image = replace(known.image, commits=Commits())
        await until(lambda: answers.ids, "the announcement")
