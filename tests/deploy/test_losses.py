"""Commands of the documentation for Compose after a lost log and after lost epochs of a node.

The tests are one story in the order of this file.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.deployment.compose import (
    CALL_TIMEOUT_S,
    PROJECT,
    CommandFailed,
    ComposeDeployment,
    deployed,
    note,
)

pytestmark = [pytest.mark.deploy, pytest.mark.slow, pytest.mark.timeout(1500)]

NODES = ("node-1", "node-2", "node-3")
ARCHIVES = ("catch-up-1", "catch-up-2", "catch-up-3")
DECIDERS = ("metadata-log-1", "metadata-log-2", "coordinator-1", "coordinator-2", "session-guard")
STARTED = (*ARCHIVES, "coordinator-1", "coordinator-2", "session-guard", *NODES)
KEYSPACE = "library"
DELETE_THE_TOPIC = """
import os
from confluent_kafka.admin import AdminClient
topic = f"stele.{os.environ['STELE_CLUSTER']}.epochs"
admin = AdminClient({"bootstrap.servers": os.environ["STELE_KAFKA_BOOTSTRAP"]})
admin.delete_topics([topic])[topic].result(60)
"""
IMAGE = "stele/services:deploy-test"
OLDER_BY = 100
"""Heartbeats. A copy that lacks this many is detected as older."""


@pytest.fixture(scope="module")
def deployment(docker: None) -> Iterator[ComposeDeployment]:
    with deployed(*STARTED) as found:
        found.has_keyspace(KEYSPACE, NODES)
        yield found


def test_log_with_a_deleted_topic_is_recovered_from_the_replicas(
    deployment: ComposeDeployment,
) -> None:
    deployment.until(lambda: put(deployment, "k", "before"), "a row to be written")
    before = deployment.state()
    delete_the_topic(deployment)

    def is_told() -> bool:
        try:
            deployment.stele("status")
        except CommandFailed as told:
            return "stele recover --dry-run" in str(told)
        return False

    deployment.until(is_told, "the loss to be told")
    plan = deployment.stele("recover", "--dry-run")
    note(plan)
    assert all(f"{replica} (http://{replica}:8080)" in plan for replica in ARCHIVES)
    assert f"continues after epoch {before['epoch']}" in plan
    assert "no epoch is lost" in plan
    assert f"http://session-guard:8080: has read epoch {before['epoch']}" in plan, (
        "it went on running"
    )
    note(deployment.stele("recover", "--actor", "ada", "--reason", "broker 1 lost its disk"))

    deployment.wait_healthy()
    after = deployment.state("linearizable")
    assert after["epoch"] > before["epoch"]
    assert after["log_id"] != before["log_id"]
    assert get(deployment, "k") == "before"
    told = deployment.stele("epochs", "--command", "recover")
    assert "ada" in told
    assert "broker 1 lost its disk" in told
    all_agree(deployment)


def test_older_copy_of_a_volume_is_refused_until_accepted(
    deployment: ComposeDeployment,
) -> None:
    node, volume = "node-2", Volume("node-2")
    deployment.compose("stop", node)
    copy = volume.read()
    deployment.start(node)
    deployment.wait_healthy()
    counted = heartbeats(deployment, node)
    deployment.until(lambda: heartbeats(deployment, node) > counted + OLDER_BY, "heartbeats", 120.0)
    deployment.until(lambda: put(deployment, "k", "since"), "a row to be written")
    deployment.compose("stop", node)
    volume.write(copy)
    deployment.start(node)
    setting = refused_with(deployment, node, "STELE_ACCEPT_OLDER_COPY")
    accept(deployment, node, setting)
    assert get(deployment, "k") == "since"
    all_agree(deployment)


def test_nodes_with_lost_epochs_are_refused_until_the_loss_is_accepted(
    deployment: ComposeDeployment,
) -> None:
    old = deployment.state()["log_id"]
    deployment.compose("stop", *ARCHIVES)
    truncate = deployment.submit("truncate-library", {"type": "truncate", "name": KEYSPACE})
    assert truncate["applied"]

    deployment.until(
        lambda: deployment.status_of(truncate["request_id"]) == "done", "the truncation"
    )
    deployment.compose("kill", *DECIDERS, *NODES)
    delete_the_topic(deployment)
    for service in (*ARCHIVES, *DECIDERS):
        deployment.start(service)

    def recovered() -> bool:
        note(deployment.stele("recover", "--reason", "the power failed"))
        return True

    deployment.until(recovered, "the recovery", 180.0)
    assert deployment.state("linearizable")["epoch"] > 0
    for node in NODES:
        deployment.start(node)
    for node in NODES:
        assert refused_with(deployment, node, "STELE_ACCEPT_LOST_EPOCHS").endswith(f"={old}")
    accept(deployment, "node-1", f"STELE_ACCEPT_LOST_EPOCHS={old}")
    assert deployment.positions(["node-1"])["node-1"]["epoch"] >= deployment.state()["epoch"]


def put(deployment: ComposeDeployment, key: str, value: str) -> bool:
    typed = f"printf %s {value} | stele put {KEYSPACE} {key} -"
    deployment.in_a_container("bash", "-c", typed)
    return True


def get(deployment: ComposeDeployment, key: str) -> str:
    return deployment.stele("get", KEYSPACE, key)


def delete_the_topic(deployment: ComposeDeployment) -> None:
    """Delete it as `kafka-topics.sh` does, which the test image lacks."""
    deployment.in_a_container("python", "-c", DELETE_THE_TOPIC)


def heartbeats(deployment: ComposeDeployment, node: str) -> int:
    """Return the heartbeat count in the data directory of a node."""
    file = deployment.compose("exec", "-T", node, "cat", "/var/lib/stele/heartbeats")
    return max(int(line.split()[0]) for line in file.splitlines() if line.strip())


def refused_with(deployment: ComposeDeployment, node: str, setting: str) -> str:
    """Return the setting that a refused node suggests. Its container restarts it repeatedly."""
    found: list[str] = []

    def is_told() -> bool:
        found.extend(re.findall(rf"{setting}=\w+", deployment.logs(node)))
        return bool(found) and deployment.restarts(node) > 1

    deployment.until(is_told, f"{node} to ask for {setting}", 120.0)
    return found[-1]


def accept(deployment: ComposeDeployment, node: str, setting: str) -> None:
    """Start the node as on the page: once with the setting, then without."""
    deployment.compose("stop", node)
    deployment.until(lambda: not is_up(deployment, node), f"{node} to be down", 60.0)
    with deployment.once(node, setting):
        deployment.until(lambda: is_up(deployment, node), f"{node} to be up", 120.0)
    deployment.start(node)
    deployment.until(lambda: deployment.is_healthy(node), f"{node} to be well by itself", 120.0)


def is_up(deployment: ComposeDeployment, node: str) -> bool:
    """Return whether `stele nodes` shows the node as up."""
    (line,) = (line for line in deployment.stele("nodes").splitlines() if node in line)
    return " up " in line


def all_agree(deployment: ComposeDeployment) -> None:
    asked = (*ARCHIVES, *DECIDERS, *NODES)

    def agree() -> bool:
        found = deployment.positions(asked).values()
        return len({(p["epoch"], p["state_id"], p["hash"]) for p in found}) == 1

    deployment.until(agree, "one epoch and one hash of all processes")


class Volume:
    """The data volume of a service, whose container must be stopped for writes."""

    def __init__(self, service: str) -> None:
        mounted = f"{PROJECT}_{service}:/var/lib/stele"
        self._run = ["docker", "run", "--rm", "--interactive", "--volume", mounted, IMAGE]

    def read(self) -> bytes:
        return self._do("tar --create --file - .")

    def write(self, copy: bytes) -> None:
        """Replace the file's content."""
        self._do("find . -mindepth 1 -delete && tar --extract --file -", copy)

    def _do(self, what: str, given: bytes = b"") -> bytes:
        command = [*self._run, "bash", "-c", what]
        done = subprocess.run(
            command, input=given, capture_output=True, timeout=CALL_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout
