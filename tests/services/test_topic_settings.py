"""Harmful settings of the topic of the log are reported, and no command is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from prometheus_client import Gauge
from prometheus_client.samples import Sample

from stele.log.flows import flow_topic
from stele.metadata_log.metrics import topic_differences
from stele.metadata_log.topic_settings import TopicSettings
from stele.runtime.kafka import Harm, SettingDifference
from tests.deployment.metadata_log import MetadataLog, Start, instances
from tests.polling import wait_until

DEADLINE_S = 240.0


@pytest.fixture
def start(kafka: str, cluster: str, tmp_path: Path) -> Iterator[Start]:
    with instances(tmp_path, kafka, cluster) as found:
        yield found


def alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def reason(service: MetadataLog) -> str:
    return str(service.http.get("/healthz").json()["reason"])


async def test_failed_read_of_topic_settings_keeps_the_last_result() -> None:
    named = SettingDifference(
        "stele.demo.epochs", Harm.LOSS, "with retention.ms=1 it deletes records"
    )
    told: list[Sequence[SettingDifference] | Exception] = [[named], KafkaException("no"), []]

    def ask() -> Sequence[SettingDifference]:
        found = told.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    topics = TopicSettings("stele.demo.epochs", ask)
    await topics.look()
    assert "retention.ms=1" in topics.trouble
    await topics.look()
    assert "retention.ms=1" in topics.trouble
    await topics.look()
    assert topics.trouble == topics.notice == ""


async def test_only_problems_of_the_epochs_topic_explain_a_missing_answer() -> None:
    other = SettingDifference("stele.demo.acks", Harm.LOSS, "it keeps no newest record")
    few = SettingDifference("stele.demo.epochs", Harm.DURABILITY, "it has 1 copy")
    topics = TopicSettings("stele.demo.epochs", lambda: [other, few])
    await topics.look()
    assert topics.trouble == ""
    assert "1 copy" in topics.notice and "no newest record" in topics.notice
    told = {(s.labels["topic"], s.labels["harm"]) for s in samples_of(topic_differences)}
    assert told == {(other.topic, "loss"), (few.topic, "durability")}


def samples_of(gauge: Gauge) -> list[Sample]:
    return [sample for family in gauge.collect() for sample in family.samples]


@pytest.mark.broker
def test_health_reports_a_single_topic_replica_outside_of_development(
    start: Start,
) -> None:
    service = start(STELE_DEVELOPMENT="false").wait_healthy()
    wait_until(lambda: "epochs" in reason(service), "the report", DEADLINE_S)
    assert "has 1 copy and min.insync.replicas=1" in reason(service)
    assert service.http.get("/healthz").json()["ok"] is True
    assert 'stele_log_topic_differences{harm="durability"' in service.http.get("/metrics").text


@pytest.mark.broker
def test_compacted_epochs_topic_is_reported_and_commands_resume_later(
    start: Start, kafka: str, cluster: str
) -> None:
    """A compacted topic refuses records without a key, so commands have no outcome until it is reset."""
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
