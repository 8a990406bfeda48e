"""Brokers that need TLS with a password or a certificate, and enforce ACLs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from stele.catch_up.trimming import delete_records
from stele.cli.errors import Exit
from stele.coordinator.election import Election
from stele.domain.commands import Envelope, Noop
from stele.log import deliveries, flows, kafka
from stele.log.brokers import Brokers
from stele.log.chain import Anchor, digest_of
from stele.log.commander import Commander
from stele.log.flows import FlowReader, FlowWriter, flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.log.port import Record
from stele.placements.fold import EventsHead
from stele.placements.topic import PLACEMENTS, Marker, TopicWriter
from stele.placements.watch import TopicWatch
from stele.runtime import group
from stele.runtime.kafka import TopicsUnavailable, ensure_topics, read_topics
from stele.runtime.live_flow import LiveFlow, reading_live
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import KafkaSettings, ServiceSettings, load_settings
from stele_harness.stack.process import Program, spawn
from stele_harness.tables import read_placements
from tests.deployment.process import Service
from tests.deployment.processes import KEYSPACE, Deployment, following
from tests.docs.acls_page import acls_of, acls_of_kind, kinds
from tests.polling import until, wait_until
from tests.secured import USERS, Secured

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def reset_refusals() -> Iterator[None]:
    """Reset recorded refusals, so that tests do not affect each other."""
    yield
    deliveries._Process.newest = ("", 0.0)


Way = Callable[[Secured], dict[str, str]]
WAYS: dict[str, Way] = {
    "scram": lambda secured: secured.by_password(),
    "plain": lambda secured: secured.by_password(mechanism="PLAIN"),
    "certificate": Secured.by_certificate,
    "without tls": Secured.without_tls,
}


def brokers_of(environment: dict[str, str]) -> Brokers:
    return load_settings(KafkaSettings, environment).brokers


@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_client_connects(secured: Secured, cluster: str, way: str) -> None:
    environment = WAYS[way](secured) | {"STELE_CLUSTER": cluster, "STELE_INSTANCE_ID": "one"}
    settings = load_settings(ServiceSettings, environment)
    brokers, epochs = settings.brokers, flow_topic(cluster, "epochs")
    await asyncio.to_thread(ensure_topics, brokers, cluster)
    await use_the_log(brokers, epochs)
    await use_flows(settings)
    admin = AdminClient(brokers.client())
    assert (await asyncio.to_thread(read_topics, admin, [epochs]))[epochs].config
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
    assert TopicWriter(brokers, cluster, PLACEMENTS).publish(Marker(1, "aa"), {}, set())
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
    "no ACLs": (lambda secured: secured.by_password("app"), "docs/guides/secure.md"),
    "listener": (
        lambda secured: secured.by_password() | {"STELE_KAFKA_BOOTSTRAP": secured.plaintext},
        "STELE_KAFKA_SECURITY_PROTOCOL",
    ),
}


async def test_refused_connections_are_logged_with_a_hint(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flows, "START_TIMEOUT_S", 12.0)
    monkeypatch.setattr(kafka, "LOOK_TIMEOUT_S", 12.0)
    await asyncio.gather(*(is_refused(name, secured) for name in REFUSED))
    for _, hint in REFUSED.values():
        assert any("refused by Kafka" in line and hint in line for line in caplog.messages)
    assert not any(password in caplog.text for password in USERS.values())


async def is_refused(name: str, secured: Secured) -> None:
    way, hint = REFUSED[name]
    brokers, cluster = brokers_of(way(secured)), f"refused-{name.replace(' ', '-')}"
    log = KafkaLog(brokers, flow_topic(cluster, "epochs"))
    reader = FlowReader(brokers, flow_topic(cluster, "acks"), lambda _: None, lambda _: None)

    def make_topics() -> None:
        ensure_topics(brokers, cluster, deadline_s=12.0)

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


def test_process_refused_at_start_logs_the_reason_and_stops_on_request(
    secured: Secured, tmp_path: Path
) -> None:
    way, hint = REFUSED["password"]
    out, said = tmp_path / "out", tmp_path / "err"
    argv = [sys.executable, "-m", "stele.session_guard"]
    process = spawn(Program("guard", argv, out, said, {**os.environ, **way(secured)}))
    try:
        wait_until(lambda: "refused by Kafka" in said.read_text(), "the reason")
        assert hint in said.read_text()
        process.signal(signal.SIGTERM)
        assert process.wait(150) == 0
    finally:
        process.stop()
    assert not any(password in said.read_text() for password in USERS.values())


async def test_missing_group_acl_is_reported_until_it_is_granted(
    secured: Secured, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "RECENT_S", 0.5)
    monkeypatch.setattr(group, "PROVEN_S", 0.5)
    acls = acls_of("stele", cluster)
    of_groups = [acl for acl in acls if acl.restype is ResourceType.GROUP]
    secured.allow([acl for acl in acls if acl not in of_groups])
    brokers = brokers_of(secured.by_password("stele"))
    await asyncio.to_thread(ensure_topics, brokers, cluster)
    election = Election(brokers, cluster, "one", lambda: None)
    election.start()
    try:
        await until(lambda: "docs/guides/secure.md" in election.failure, "the reason")
        member, met_s = election._membership, time.monotonic()
        await until(lambda: time.monotonic() - met_s > 2 and not member.refused.newest, "silence")
        assert "docs/guides/secure.md" in election.failure, "the client says it once"
        secured.allow(of_groups)
        await until(lambda: election.elected and not election.failure, "the election")
    finally:
        await election.close()


async def test_revoked_acls_are_reported_and_readers_resume_when_granted(
    secured: Secured, cluster: str
) -> None:
    """ACLs are revoked from a reader of the log and from a member of a group."""
    acls = acls_of("stele", cluster)
    secured.allow(acls)
    brokers = brokers_of(secured.by_password("stele"))
    await asyncio.to_thread(ensure_topics, brokers, cluster)
    log = KafkaLog(brokers, flow_topic(cluster, "epochs"))
    follower, election = LogFollower(log), Election(brokers, cluster, "one", lambda: None)
    follower.start()
    election.start()
    try:
        await until(lambda: election.elected and not follower.trouble, "a good beginning")
        await asyncio.to_thread(secured.forbid, acls)
        page = "docs/guides/secure.md"
        await until(lambda: page in follower.trouble and page in election.failure, "the reasons")
        secured.allow(acls)
        await until(lambda: not follower.trouble, "the log is read")
        await until(lambda: election.elected and not election.failure, "the election")
    finally:
        follower.stop()
        await asyncio.gather(log.close(), election.close())


async def test_process_is_unhealthy_without_an_acl_on_any_of_its_topics(
    secured: Secured, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ACL after the other is revoked, since each affects another client."""
    monkeypatch.setattr(deliveries, "RECENT_S", 2.0)
    acls = acls_of("stele", cluster)
    secured.allow(acls)
    brokers = brokers_of(secured.by_password("stele"))
    await asyncio.to_thread(ensure_topics, brokers, cluster)
    heard = list[bytes]()
    acks = FlowWriter(brokers, flow_topic(cluster, "acks"))
    log = KafkaLog(brokers, flow_topic(cluster, "epochs"))
    reader = FlowReader(brokers, flow_topic(cluster, "acks"), heard.append, lambda error: None)
    log.follow(0, lambda records: None, lambda error: None)
    await reader.start()
    try:
        await is_read(acks, heard)
        await until(is_well, "refusals of the tests before are past")
        of_topics = [acl for acl in acls if acl.restype is ResourceType.TOPIC]
        reads = [acl for acl in of_topics if acl.operation is AclOperation.READ]
        await asyncio.to_thread(secured.forbid, reads)
        await until(is_refused_an_acl, "it says that it is refused")
        began_s = time.monotonic()
        while time.monotonic() - began_s < 2 * deliveries.RECENT_S:
            assert is_refused_an_acl(), "it is refused all the time, though the client says it once"
            await asyncio.sleep(0.2)
        secured.allow(reads)
        await until(is_well, "it is refused no more")
        heard.clear()
        await is_read(acks, heard)
        writes = [acl for acl in of_topics if acl.operation is AclOperation.WRITE]
        await asyncio.to_thread(secured.forbid, writes)
        log.append(b"not taken")
        await until(is_refused_an_acl, "it says that it is refused")
        await until(is_well, "it has nothing to write")
        sent_s = time.monotonic()
        while time.monotonic() - sent_s < 2 * flows.ASK_AGAIN_S:
            acks.send("n1", b"not taken")
            await asyncio.sleep(0.1)
        assert is_refused_an_acl()
        secured.allow(writes)
        heard.clear()
        await is_read(acks, heard)
    finally:
        await asyncio.gather(log.close(), reader.close(), acks.close())


async def test_spark_job_does_not_treat_an_unreadable_log_as_lost(
    secured: Secured, cluster: str
) -> None:
    acls = [acl for acl in acls_of("stele", cluster) if acl.operation is not AclOperation.READ]
    secured.allow([acl for acl in acls_of("stele", cluster) if acl.restype is ResourceType.GROUP])
    secured.allow(acls)
    brokers = brokers_of(secured.by_password("stele"))
    await asyncio.to_thread(ensure_topics, brokers, cluster)
    log, watch = KafkaLog(brokers, flow_topic(cluster, "epochs")), TopicWatch(brokers, cluster)
    log.append(b"first")
    try:
        await asyncio.to_thread(wait_until, lambda: watch.look()[cluster].end == 1, "the record")
        now, head = (
            watch.look()[cluster],
            EventsHead(next_offset=1, anchor=Anchor(0, digest_of(b"first"))),
        )
        with pytest.raises(KafkaException, match="authorization failed"):
            await asyncio.to_thread(watch.continues, cluster, head, now)
        secured.allow(acls_of("stele", cluster))
        assert await asyncio.to_thread(watch.continues, cluster, head, now)
    finally:
        watch.close()
        await log.close()


def is_well() -> bool:
    return not deliveries.refused_lately()


def is_refused_an_acl() -> bool:
    return "docs/guides/secure.md" in deliveries.refused_lately()


async def is_read(acks: FlowWriter, heard: list[bytes]) -> None:
    """Send an ack repeatedly until it is read."""
    end_s = time.monotonic() + 240
    while not heard:
        assert time.monotonic() < end_s, "the ack is not read"
        acks.send("n1", b"ack")
        await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_cluster_runs_with_passwords_and_the_documented_acls(
    secured: Secured,
    cluster: str,
    redis_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All services run as separate users. A node joins, clients write, and a program sends a command."""
    secured.allow([*acls_of("stele", cluster), *acls_of("app", cluster)])
    secured.allow([acl for kind in kinds() for acl in acls_of_kind(kind, cluster)])
    await asyncio.to_thread(ensure_topics, brokers_of(secured.by_password("stele")), cluster)
    async with following(
        secured.plaintext, cluster, redis_url, tmp_path, **secured.by_password()
    ) as site:

        async def start(kind: str, **settings: object) -> Service:
            return await site.start(kind.replace("-", "_"), **user(secured, kind), **settings)

        log = await start("metadata-log")
        site.log_url = log.url
        catch_up = await start("catch-up", metadata_log_urls=log.url)
        guard = await start("session-guard", catch_up_urls=catch_up.url)
        coordinator = await start("coordinator", session_guard_urls=guard.url)
        balancer = await start("tablet-balancer", metadata_log_urls=log.url)
        node = await site.start_node("n1", **user(secured, "node"))
        await site.normal("n1")
        await site.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 1})
        assert (await site.put("n1", "key", b"value"))[0] == 200
        assert await site.get("n1", "key") == (200, b"value")
        everyone = (log, catch_up, guard, coordinator, balancer, node)
        for service in everyone:
            await service.until("/healthz", lambda health: health["ok"], "health")
        await check_program_sends_a_command(brokers_of(secured.by_password("app")), site)
        assert "refused by Kafka: Broker: Topic authorization failed" in caplog.text
        replayed = await replay(cluster, secured.by_password("app"))
        assert json.loads(replayed.stdout)["epoch"] == (await site.newest_image()).epoch
        stranger = await replay(cluster, secured.by_password("app", ca="stranger"))
        assert stranger.returncode == Exit.UNREACHABLE, stranger
        assert "STELE_KAFKA_SSL_CA_FILE" in stranger.stderr
        assert "refused by Kafka" not in all_output(tmp_path)
        await asyncio.gather(*(each.stop() for each in (catch_up, coordinator, balancer)))
        await check_unhealthy_while_the_password_is_refused(secured, (log, guard, node))
    assert "refused by Kafka" in all_output(tmp_path)
    assert not any(password in all_output(tmp_path) for password in USERS.values())


def user(secured: Secured, kind: str) -> dict[str, object]:
    """Return the settings of a process of this kind."""
    file = secured.folder / f"{kind}.password"
    return {"kafka_sasl_username": kind, "kafka_sasl_password_file": file}


async def replay(cluster: str, environment: dict[str, str]) -> CompletedProcess[str]:
    command = [sys.executable, "-m", "stele.cli", "log", "replay", "--json", "--cluster", cluster]
    env = {**os.environ, **environment}
    return await asyncio.to_thread(
        run, command, env=env, capture_output=True, text=True, timeout=240, check=False
    )


async def check_unhealthy_while_the_password_is_refused(
    secured: Secured, everyone: Iterable[Service]
) -> None:
    """Restart the broker with another password, and wait until these services report it."""
    secured.give_passwords(dict.fromkeys(kinds(), "another"))
    await asyncio.to_thread(secured.stop)
    await asyncio.to_thread(secured.start)
    for service in everyone:
        await service.until("/healthz", is_refused_the_password, "it says that it is refused")
    secured.give_passwords()
    for service in everyone:
        await service.until("/healthz", lambda health: health["ok"], "health")


def is_refused_the_password(health: dict[str, Any]) -> bool:
    return not health["ok"] and "STELE_KAFKA_SASL_PASSWORD_FILE" in health["reason"]


def all_output(folder: Path) -> str:
    """Return the output of all processes."""
    files = [*folder.glob("*.out"), *folder.glob("*.err")]
    return "\n".join(file.read_text() for file in files)


async def check_program_sends_a_command(brokers: Brokers, cluster: Deployment) -> None:
    """Check that a program can send a command and read the log, and cannot write other topics."""
    name, before = cluster.image.cluster, cluster.image.epoch
    async with Commander(brokers, name) as commander:
        noop = Envelope(request_id=new_request_id(), command=Noop())
        outcome = await commander.submit(noop, 150)
    assert outcome.applied and outcome.epoch > before
    log = KafkaLog(brokers, flow_topic(name, "epochs"))
    try:
        end = (await log.ends()).end
        assert await log.read(end - 1, 1)
    finally:
        await log.close()
    acks = FlowWriter(brokers, flow_topic(name, "acks"))
    acks.send("n1", b"forged")
    await acks.close()
    for flow in ("epochs", "outcomes", "orders", "acks"):
        assert await asyncio.to_thread(written, brokers, flow_topic(name, flow)) == (
            KafkaError.TOPIC_AUTHORIZATION_FAILED
        )


def written(brokers: Brokers, topic: str) -> int | None:
    """Return the error code of a produced record, or None if it was accepted."""
    found = list[KafkaError | None]()
    producer = Producer(brokers.client() | {"message.timeout.ms": 10_000})
    producer.produce(topic, b"forged", on_delivery=lambda error, _: found.append(error))
    producer.flush(20)
    return None if found[0] is None else found[0].code()
