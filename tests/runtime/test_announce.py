"""An announcement is said again under its own id until it is known what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import version

import pytest

from stele.domain.commands import Envelope, Rejection
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.requests.ids import state_time_ms, time_ms
from stele.domain.services.facts import Service
from stele.log.commander import NotTakenError
from stele.runtime import announce as module
from stele.runtime.announce import announced, own_service
from stele.runtime.build import Build
from stele.runtime.settings import ServiceSettings
from tests.domain.history import three_nodes
from tests.services.world import until


class Asked:
    """What was asked, and how it is answered: with the next of ``answers``, the last one again and again."""

    def __init__(self, *answers: Exception | int | None) -> None:
        self.ids: list[str] = []
        self.answers = list(answers)

    async def announce(self, envelope: Envelope, bootstrap: str, cluster: str) -> int | None:
        self.ids.append(envelope.request_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


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
