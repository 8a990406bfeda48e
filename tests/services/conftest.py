"""A log with a writer in this process, and services as separate processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deployment.process import Start, services
from tests.deployment.processes import Deployment
from tests.services.world import LogWriter, log_writer


@pytest.fixture
async def writer(kafka: str, topics: str) -> AsyncIterator[LogWriter]:
    async with log_writer(kafka, topics) as found:
        yield found


@pytest.fixture
async def start(kafka: str, topics: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    async with services(kafka, topics, redis_url, tmp_path) as found:
        yield found


@pytest.fixture
def site(start: Start, kafka: str, topics: str, tmp_path: Path) -> Deployment:
    return Deployment(start, tmp_path, kafka, topics)
