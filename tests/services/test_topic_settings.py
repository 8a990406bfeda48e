"""Whoever changes the settings of the log's topic is told what that does to it, and commands are not lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from stele.log.flows import flow_topic
from stele.metadata_log.topic_settings import TopicSettings, flaws
from stele.runtime.kafka import Topic, topic_specs
from tests.polling import wait_until
from tests.services.metadata_logs import Service, Start, instances

DEADLINE_S = 90.0


@pytest.fixture
def start(kafka: str, cluster: str, tmp_path: Path) -> Iterator[Start]:
    with instances(tmp_path, kafka, cluster) as found:
        yield found


def alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def reason(service: Service) -> str:
    return str(service.http.get("/healthz").json()["reason"])


def test_a_topic_as_it_is_made_has_no_flaws() -> None:
    assert flaws(topic_specs(3)[Topic.EPOCHS].config) == []
    assert flaws({}) == [], "what nobody tells is no flaw"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", "1048588"),
    ],
)
def test_each_setting_that_does_harm_is_named(name: str, value: str) -> None:
    (found,) = flaws({**topic_specs(3)[Topic.EPOCHS].config, name: value})
    assert f"{name}={value}" in found


async def test_settings_that_are_not_told_change_nothing() -> None:
    told: list[Mapping[str, str] | Exception] = [{"retention.ms": "1"}, KafkaException("no"), {}]

    def ask() -> Mapping[str, str]:
        found = told.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    topic = TopicSettings("stele.demo.epochs", ask)
    await topic.look()
    assert "retention.ms=1" in topic.trouble
    await topic.look()
    assert "retention.ms=1" in topic.trouble
    await topic.look()
    assert topic.trouble == ""


@pytest.mark.broker
def test_a_compacted_log_is_named_as_the_cause_and_takes_commands_again(
    start: Start, kafka: str, cluster: str
) -> None:
    """Kafka refuses records without a key then, so commands have no outcome until somebody sets it back."""
    service = start(STELE_REQUEST_TIMEOUT_S="2").wait_healthy().wait_known()
    topic = flow_topic(cluster, "epochs")
    before = service.set("a", "1")
    alter(kafka, topic, "cleanup.policy", "compact")
    wait_until(lambda: "cleanup.policy=compact" in reason(service), "the cause", DEADLINE_S)
    answer = service.command("b", type="set_setting", name="b", value="2")
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")
    assert "cleanup.policy=compact" in answer.json()["message"]
    alter(kafka, topic, "cleanup.policy", "delete")
    wait_until(lambda: not reason(service), "the cause to go", DEADLINE_S)
    again = service.command("b", type="set_setting", name="b", value="2")
    assert again.status_code == 200, again.text
    assert again.json()["epoch"] > before["epoch"]
    assert service.get("/v1/state")["settings"]["b"] == "2"
