"""Processes of services announce themselves, and repeat it when their row is missing or differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.domain.commands import AnnounceService, ForgetService
from stele.domain.model.services import Service
from stele.runtime.announce import own_service
from tests.deployment.process import services
from tests.polling import until
from tests.services.world import log_writer

pytestmark = pytest.mark.broker

NAMES = ("session-guard", "catch-up", "tablet-balancer", "coordinator", "cdc-connector")


async def test_every_service_announces_itself_again_after_it_was_forgotten(
    kafka: str, topics: str, tmp_path: Path, redis_url: str
) -> None:
    async with (
        log_writer(kafka, topics) as writer,
        services(kafka, topics, redis_url, tmp_path) as start,
    ):

        def known() -> dict[str, Service]:
            return {**writer.image.services.services}

        for name in NAMES:
            await start(name.replace("-", "_"), "host-1")
        expected = {f"{name}/host-1": own_service(name, "host-1") for name in NAMES}
        await until(lambda: known() == expected, "all announcements")
        await writer.submit(ForgetService("catch-up/host-1"))
        await until(lambda: known() == expected, "catch-up to announce itself again")

        other = AnnounceService(service_id="catch-up/host-1", release_version="9")
        await writer.submit(other)
        await writer.submit(ForgetService("session-guard/host-1"))
        await until(lambda: "session-guard/host-1" in known(), "session-guard to be known again")
        await until(lambda: known() == expected, "catch-up to say what it is")


async def test_each_metadata_log_announces_itself(
    kafka: str, topics: str, tmp_path: Path, redis_url: str
) -> None:
    async with services(kafka, topics, redis_url, tmp_path) as start:
        logs = [await start("metadata_log", name) for name in ("one", "two")]
        for log in logs:
            found = await log.until("/v1/services", lambda a: len(a["services"]) == 2, "both")
            assert [s["service_id"] for s in found["services"]] == [
                "metadata-log/one",
                "metadata-log/two",
            ]
