"""One real Spark session for all Spark tests, and the log of a cluster in a real topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka import Producer

from stele.log.flows import flow_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLUSH_S = 150.0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from stele.placements.settings import default_jars, spark_session

    scratch = tmp_path_factory.mktemp("spark")
    session = spark_session(default_jars(), "local[2]", "768m", scratch)
    yield session
    session.stop()


class Append(Protocol):
    """Append records to the log of a cluster, or to another topic, in their order."""

    def __call__(self, cluster: str, values: Sequence[bytes], flow: str = "epochs") -> None: ...


@pytest.fixture
def append(kafka: str) -> Iterator[Append]:
    """Return ``append(cluster, values)``."""
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True})

    def send(cluster: str, values: Sequence[bytes], flow: str = "epochs") -> None:
        for value in values:
            producer.produce(flow_topic(cluster, flow), value, partition=0)
        assert producer.flush(FLUSH_S) == 0, "the broker did not take the records"

    yield send
    producer.flush(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the tables of a job."""
    return tmp_path / "placements"
