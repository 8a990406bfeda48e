"""Brokers that are reached by TLS and a password or a certificate alone, and that go by their ACLs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from stele.catch_up.truncating import delete_records
from stele.coordinator.election import Election
from stele.log import flows
from stele.log.brokers import Brokers
from stele.log.commander import Commander
from stele.log.flows import FlowReader, FlowWriter, flow_topic
from stele.log.kafka import KafkaLog
from stele.log.port import Record
from stele.metadata_log.topic_settings import settings_of
from stele.placements.topic import Marker, TopicWriter, read_placements
from stele.placements.watch import TopicWatch
from stele.runtime.kafka import TopicsUnavailable, ensure_topics
from stele.runtime.live_flow import LiveFlow, reading_live
from stele.runtime.settings import KafkaSettings, ServiceSettings, load_settings
from tests.docs.acls_page import acls_of
from tests.secured import USERS, Secured
from tests.services.world import until

pytestmark = pytest.mark.broker

Way = Callable[[Secured], dict[str, str]]
WAYS: dict[str, Way] = {
    "scram": lambda secured: secured.by_password(),
    "plain": lambda secured: secured.by_password(mechanism="PLAIN"),
    "certificate": Secured.by_certificate,
}


def brokers_of(environment: dict[str, str]) -> Brokers:
    return load_settings(KafkaSettings, environment).brokers


@pytest.fixture
def allowed(secured: Secured, cluster: str) -> str:
    """The name of a cluster for which the page's users have the page's ACLs."""
    bindings = [acl for user in ("stele", "app") for acl in acls_of(user, cluster)]
    for made in secured.admin().create_acls(bindings).values():
        made.result(30)
    return cluster


@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_client_gets_through(secured: Secured, cluster: str, way: str) -> None:
    environment = WAYS[way](secured) | {"STELE_CLUSTER": cluster, "STELE_INSTANCE_ID": "one"}
    settings = load_settings(ServiceSettings, environment)
    brokers, epochs = settings.brokers, flow_topic(cluster, "epochs")
    await asyncio.to_thread(ensure_topics, brokers, cluster)
    await use_the_log(brokers, epochs)
    await use_flows(settings)
    assert await asyncio.to_thread(settings_of(brokers, epochs))
    await asyncio.to_thread(delete_records, brokers, epochs, 1)
    await asyncio.to_thread(use_the_topic_of_placements, brokers, cluster)
    election = Election(brokers, cluster, "one", lambda: None)
    election.start()
    try:
        await until(lambda: election.elected, "the election")
    finally:
        await election.close()


async def use_the_log(brokers: Brokers, topic: str) -> None:
    log, read = KafkaLog(brokers, topic), list[Record]()
    try:
        log.append(b"first")
        log.follow(0, read.extend, lambda error: None)
        await until(lambda: read, "the record")
        assert (await log.ends()).end == 1
        assert (await log.look(0)).value == b"first"
        assert [record.value for record in await log.read(0, 1)] == [b"first"]
    finally:
        await log.close()


async def use_flows(settings: ServiceSettings) -> None:
    heard, live = list[bytes](), list[bytes]()
    topic = flow_topic(settings.cluster, "acks")
    reader = FlowReader(settings.brokers, topic, heard.append, lambda error: None)
    writer = FlowWriter(settings.brokers, topic)
    async with (
        Commander(settings.brokers, settings.cluster),
        reading_live(
            settings,
            LiveFlow("trial", "acks", 10),
            lambda value, _: live.append(value),
            lambda *_: None,
        ),
    ):
        try:
            await reader.start()
            writer.send("n1", b"ack")
            await until(lambda: heard and live, "the ack, by both readers")
            assert heard == live == [b"ack"]
        finally:
            await reader.close()
            await writer.close()


def use_the_topic_of_placements(brokers: Brokers, cluster: str) -> None:
    assert TopicWriter(brokers, cluster).publish(Marker(1, "aa"), {}, set())
    assert read_placements(brokers, cluster).marker.epoch == 1
    watch = TopicWatch(brokers, cluster)
    try:
        assert watch.look()[cluster].begin == 1
    finally:
        watch.close()


REFUSED: dict[str, tuple[Way, str]] = {
    "password": (
        lambda secured: (
            secured.by_password()
            | {"STELE_KAFKA_SASL_PASSWORD_FILE": str(secured.folder / "app.password")}
        ),
        "STELE_KAFKA_SASL_PASSWORD_FILE",
    ),
    "mechanism": (
        lambda secured: secured.by_password(mechanism="SCRAM-SHA-256"),
        "STELE_KAFKA_SASL_MECHANISM",
    ),
    "authority": (lambda secured: secured.by_password(ca="stranger"), "STELE_KAFKA_SSL_CA_FILE"),
    "no certificate": (Secured.without_certificate, "STELE_KAFKA_SSL_CERTIFICATE_FILE"),
    "no ACLs": (lambda secured: secured.by_password("app"), "docs/operations/security.md"),
    "listener": (
        lambda secured: secured.by_password() | {"STELE_KAFKA_BOOTSTRAP": secured.plaintext},
        "STELE_KAFKA_SECURITY_PROTOCOL",
    ),
}


async def test_what_is_refused_is_said_with_what_to_do_and_in_time(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flows, "START_TIMEOUT_S", 8.0)
    began_s = time.monotonic()
    await asyncio.gather(*(is_refused(name, secured) for name in REFUSED))
    assert time.monotonic() - began_s < 30
    for _, hint in REFUSED.values():
        assert any("refused by Kafka" in line and hint in line for line in caplog.messages)
    assert not any(password in caplog.text for password in USERS.values())


async def is_refused(name: str, secured: Secured) -> None:
    way, hint = REFUSED[name]
    brokers, cluster = brokers_of(way(secured)), f"refused-{name.replace(' ', '-')}"
    log = KafkaLog(brokers, flow_topic(cluster, "epochs"))
    reader = FlowReader(brokers, flow_topic(cluster, "acks"), lambda _: None, lambda _: None)

    def make_topics() -> None:
        ensure_topics(brokers, cluster, deadline_s=6.0)

    said = await asyncio.gather(
        asyncio.to_thread(make_topics),
        log.look(None),
        reader.start(),
        return_exceptions=True,
    )
    await asyncio.gather(log.close(), reader.close())
    for what, error in zip(("topics", "look", "flow"), said, strict=True):
        assert isinstance(error, TopicsUnavailable | TimeoutError), (name, what, error)
        assert hint in str(error), (name, what, error)
        assert not any(password in str(error) for password in USERS.values())
