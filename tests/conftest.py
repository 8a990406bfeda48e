"""Servers for the tests, each found or started once a session.

Kafka: `STELE_TEST_KAFKA` (bootstrap servers), else a container when Docker answers and the image
is there already, else a broker on the local JVM. Redis: `STELE_TEST_REDIS` (a URL), else local.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stele.runtime.kafka import ensure_topics
from tests.servers import container_broker, local_broker, local_redis

# How fast this machine is says nothing about what is tested.
settings.register_profile("stele", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stele")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real broker (one node, replication factor 1)."""
    given = os.environ.get("STELE_TEST_KAFKA")
    if given:
        yield given
        return
    with container_broker() as bootstrap:
        if bootstrap is not None:
            yield bootstrap
            return
    with local_broker(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis or Valkey server. Tests share it: use keys with the cluster's name."""
    given = os.environ.get("STELE_TEST_REDIS")
    if given:
        yield given
        return
    with local_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def cluster() -> str:
    """A cluster name of its own for each test: topics and keys never meet."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topics(kafka: str, cluster: str) -> str:
    """The cluster's name, once all of its topics exist on the broker."""
    ensure_topics(kafka, cluster)
    return cluster


@pytest.fixture
def fake_module(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a module that `python -m` finds: `folder = fake_module(name, source)`.

    Put the folder on the child's PYTHONPATH.
    """

    def write(name: str, source: str) -> Path:
        folder = tmp_path / "modules"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(source)
        return folder

    return write
