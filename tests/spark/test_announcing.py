"""The job announces itself in each cluster, and corrects a row that is wrong or missing."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
from immutables import Map
from msgspec.structs import replace

from stele.domain.commands import AnnounceService, Envelope
from stele.domain.image import Image
from stele.domain.model.services import Service, ServicesImage
from stele.placements import __main__ as placements
from stele.placements.__main__ import EVERY_EPOCHS, positions_to_announce
from stele.placements.settings import PlacementsSettings
from stele.runtime import announce as module
from stele.runtime.announce import own_service
from tests.domain.history import three_nodes
from tests.polling import until

OWN = own_service("placements", "p-1")
EARLIER = replace(OWN, release_version="earlier", supported_features=())


class Clusters:
    """The job's progress in each cluster, and the announcements."""

    def __init__(self) -> None:
        self.images: dict[str, Image] = {}
        self.said: list[str] = []

    def tells(self, cluster: str, row: Service | None) -> None:
        before = self.images.get(cluster, three_nodes()[0].image)
        rows = Map[str, Service]() if row is None else Map({row.service_id: row})
        self.images[cluster] = replace(
            before, epoch=before.epoch + 1, services=ServicesImage(services=rows)
        )

    async def announce(self, envelope: Envelope, bootstrap: str, cluster: str) -> int | None:
        assert isinstance(envelope.command, AnnounceService)
        assert envelope.command.release_version == OWN.release_version
        self.said.append(cluster)
        self.tells(cluster, OWN)
        return self.images[cluster].epoch


async def test_job_announces_itself_again_if_its_row_is_wrong_or_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters = Clusters()
    for each in (module, placements):
        monkeypatch.setattr(each, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "growing_pauses", lambda: itertools.repeat(0.001))
    monkeypatch.setattr(module, "announce", clusters.announce)
    runner: Any = SimpleNamespace(job=None)
    settings = PlacementsSettings(cluster="blue", instance_id="p-1")
    telling = asyncio.create_task(placements._announce(settings, cast("Any", runner)))
    try:
        runner.job = SimpleNamespace(images=lambda: {**clusters.images})
        clusters.tells("blue", None)
        clusters.tells("green", None)
        await until(lambda: sorted(clusters.said) == ["blue", "green"], "both announcements")
        await asyncio.sleep(0.05)
        assert len(clusters.said) == 2
        clusters.tells("green", EARLIER)
        await until(lambda: clusters.said[2:] == ["green"], "what is wrong is said anew")
        clusters.tells("blue", None)
        await until(lambda: clusters.said[3:] == ["blue"], "who is forgotten says it anew")
        await asyncio.sleep(0.05)
        assert len(clusters.said) == 4
    finally:
        telling.cancel()
        await asyncio.wait([telling])


def test_position_is_announced_at_first_and_after_many_epochs() -> None:
    """An announcement is an epoch of the log itself."""
    assert positions_to_announce({"one": 0, "two": 7}, {}) == {"two": 7}
    assert positions_to_announce({"two": 6 + EVERY_EPOCHS}, {"two": 7}) == {}
    due = {"two": 7 + EVERY_EPOCHS}
    assert positions_to_announce(due, {"two": 7}) == due
    assert positions_to_announce({"two": 1}, due) == {"two": 1}, "its tables were lost"
