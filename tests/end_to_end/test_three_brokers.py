"""Three brokers, replication factor 3, ``min.insync.replicas`` 2: all operations survive the loss of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from stele.domain.model.requests import named
from stele.log.flows import flow_topic
from stele.runtime.kafka import Topic
from stele_harness.stack.broker import Broker
from stele_harness.stack.stack import SERVICES, Stack
from tests.polling import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

NEEDED = {"metadata-log", "coordinator", "session-guard"}
TRIES = 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("three")
    services = [spec for spec in SERVICES if spec.name in NEEDED]
    with Stack(directory, brokers=3, nodes=3, services=services) as running:
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=240) as client:
        yield client


def _states(stack: Stack, http: httpx.Client) -> dict[str, str]:
    found: dict[str, Any] = http.get(f"{stack.url('metadata-log')}/v1/state").json()
    return {node["node_id"]: node["state"] for node in found["nodes"]}


def _command(stack: Stack, http: httpx.Client, name: str, /, **command: object) -> None:
    """Send the command until its outcome is known. Commands with the same id take effect once."""
    body = {"request_id": named(name), "actor": "test", "reason": "brokers", "command": command}
    for _ in range(TRIES):
        answer = http.post(f"{stack.url('metadata-log')}/v1/commands", json=body)
        if answer.status_code == 200:
            return
        assert answer.status_code in {503, 504}, answer.text
    raise AssertionError(f"{name} was not answered: {answer.text}")


def _leader_of_the_log(stack: Stack) -> Broker:
    admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
    topic = flow_topic(stack.cluster, Topic.EPOCHS)
    leader = admin.list_topics(topic, timeout=240).topics[topic].partitions[0].leader
    return next(b for b in stack.kafka.brokers if b.address.node_id == leader)


def _answers_at_barrier(stack: Stack, http: httpx.Client) -> bool:
    url = f"{stack.url('metadata-log')}/v1/state"
    return http.get(url, params={"level": "barrier"}).status_code == 200


def _write(stack: Stack, http: httpx.Client, keys: range) -> None:
    for key in keys:
        answer = http.put(f"{stack.url('n2')}/v1/data/library/k{key}", content=b"v%d" % key)
        assert answer.status_code == 200, answer.text


def test_join_leave_and_writes_succeed_after_a_broker_dies(
    stack: Stack, http: httpx.Client
) -> None:
    three = dict.fromkeys(("n1", "n2", "n3"), "normal")
    wait_until(lambda: _states(stack, http) == three, "three normal nodes")
    _command(stack, http, "create", type="create_keyspace", name="library", replication={"dc1": 3})
    _write(stack, http, range(20))

    _leader_of_the_log(stack).kill()
    _write(stack, http, range(20, 40))
    for _ in range(2):  # the first read finds the new leader of the partition, the second uses it
        wait_until(lambda: _answers_at_barrier(stack, http), "a read at level barrier")
    stack.add_node(4)
    wait_until(lambda: _states(stack, http).get("n4") == "normal", "n4 is normal", 240)
    _command(stack, http, "leave", type="leave", node_id="n1")
    wait_until(lambda: _states(stack, http)["n1"] == "left", "n1 has left", 240)
    _write(stack, http, range(40, 60))

    for key in range(60):
        for node in ("n2", "n3", "n4"):
            answer = http.get(f"{stack.url(node)}/v1/data/library/k{key}")
            assert answer.content == b"v%d" % key, (node, key, answer.text)
