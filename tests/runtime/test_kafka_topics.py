"""Topics of a cluster are created once, with the settings that the log needs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import NewTopic

from stele.log import flows
from stele.log.brokers import Brokers
from stele.log.deliveries import Refusals
from stele.log.flows import FlowReader, flow_topic
from stele.log.kafka import answer_of
from stele.runtime.kafka import (
    Topic,
    TopicsUnavailable,
    _Asking,
    differences,
    ensure_topics,
    make_topic,
    named_specs,
    read_topics,
    topic_specs,
)
from stele_harness.stack.ports import free_port
from tests.polling import until

pytestmark = pytest.mark.broker


def config_of(kafka: str, name: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": kafka})
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(timeout=240)
    return {key: entry.value for key, entry in entries.items()}


def test_topics_exist_with_their_partitions(kafka: str, topics: str) -> None:
    found = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=240).topics
    for topic, spec in topic_specs(1).items():
        assert len(found[flow_topic(topics, topic)].partitions) == spec.partitions


@pytest.mark.parametrize("topic", list(Topic))
def test_topic_has_the_configuration_of_its_spec(kafka: str, topics: str, topic: Topic) -> None:
    config = config_of(kafka, flow_topic(topics, topic))
    wanted = topic_specs(1)[topic].config
    assert {key: config[key] for key in wanted} == dict(wanted)


def test_epochs_topic_has_unlimited_retention_and_no_compaction(kafka: str, topics: str) -> None:
    config = config_of(kafka, f"stele.{topics}.epochs")
    assert config["cleanup.policy"] == "delete"
    assert config["retention.ms"] == "-1"
    assert config["retention.bytes"] == "-1"
    assert config["max.message.bytes"] == "8388608"
    assert config["message.timestamp.type"] == "LogAppendTime"


def test_three_replicas_need_two_in_sync() -> None:
    assert topic_specs(3)[Topic.EPOCHS].config["min.insync.replicas"] == "2"


def test_topics_are_created_by_concurrent_processes(kafka: str, cluster: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(ensure_topics, Brokers(kafka), cluster) for _ in range(4)]
    for each in made:
        each.result()
    ensure_topics(Brokers(kafka), cluster)


def test_missing_broker_is_an_error_within_the_deadline() -> None:
    with pytest.raises(TopicsUnavailable, match="list the topics"):
        ensure_topics(Brokers(f"127.0.0.1:{free_port()}"), "c", deadline_s=0.5)


def test_request_without_an_answer_is_repeated() -> None:
    """The answer of an admin client is awaited: brokers that hang give a TimeoutError."""
    asking = _Asking(Brokers(f"127.0.0.1:{free_port()}"), 90.0, Refusals())
    hanging = [Future[None]()]

    def attempt(_: float) -> None:
        if hanging:
            answer_of(hanging.pop(), 0.01)

    assert asking.until("be answered", attempt) == ()
    assert not hanging


def test_automatically_created_topic_gets_its_partitions(kafka: str, cluster: str) -> None:
    """With ``auto.create.topics.enable`` a write recreates a deleted topic."""
    admin, name = AdminClient({"bootstrap.servers": kafka}), flow_topic(cluster, Topic.ACKS)
    made = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    made[name].result(timeout=240)
    ensure_topics(Brokers(kafka), cluster)
    specs = named_specs(cluster, 1)
    states = read_topics(admin, specs)
    assert {each: state.partitions for each, state in states.items()} == {
        each: spec.partitions for each, spec in specs.items()
    }
    found = differences(specs, states, development=True)
    assert {each.topic for each in found} == {name}
    assert any("cleanup.policy=delete" in each.text for each in found)


async def test_flow_reader_reads_added_partitions(
    kafka: str, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "LOOK_FOR_PARTITIONS_S", 0.0)
    admin, name = AdminClient({"bootstrap.servers": kafka}), flow_topic(cluster, Topic.ACKS)
    made = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    await asyncio.to_thread(made[name].result, 90)
    heard = list[bytes]()
    reader = FlowReader(Brokers(kafka), name, heard.append, lambda _: None)
    await reader.start()
    try:
        await asyncio.to_thread(ensure_topics, Brokers(kafka), cluster)
        producer = Producer({"bootstrap.servers": kafka})
        for partition in range(4):
            producer.produce(name, value=b"%d" % partition, partition=partition)
        await asyncio.to_thread(producer.flush, 90)
        await until(lambda: sorted(heard) == [b"0", b"1", b"2", b"3"], "all partitions are read")
    finally:
        await reader.close()


def test_make_topic_returns_whether_it_created_the_topic(kafka: str, cluster: str) -> None:
    assert make_topic(Brokers(kafka), cluster, Topic.EPOCHS)
    assert config_of(kafka, flow_topic(cluster, Topic.EPOCHS))["retention.ms"] == "-1"
    assert not make_topic(Brokers(kafka), cluster, Topic.EPOCHS)
    with pytest.raises(TopicsUnavailable, match="list the topics"):
        make_topic(Brokers(f"127.0.0.1:{free_port()}"), cluster, Topic.EPOCHS, deadline_s=0.5)
