"""The broker fixture that uses a container."""

from __future__ import annotations

import pytest

from stele.log.brokers import Brokers
from stele.runtime.kafka import ensure_topics, topic_specs
from tests.servers import container_broker

pytestmark = [pytest.mark.deploy, pytest.mark.slow]


@pytest.mark.usefixtures("docker")
def test_fixture_broker_runs_in_a_container_if_docker_answers(cluster: str) -> None:
    with container_broker() as bootstrap:
        assert bootstrap is not None, "Docker answers and has the image"
        ensure_topics(Brokers(bootstrap), cluster)
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=240).topics
    assert {f"stele.{cluster}.{topic}" for topic in topic_specs(1)} <= set(topics)
