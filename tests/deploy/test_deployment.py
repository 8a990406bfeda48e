"""The whole Compose file: start, a join and a leave under load while containers die, stop.

The tests are one story in the order of this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from stele.domain.commands import Envelope
from stele.domain.model.requests import named
from stele.domain.model.schema import CreateKeyspace
from stele.log.brokers import Brokers
from stele_harness.tables import read_placements
from tests.deploy.expected_logs import unexpected
from tests.deployment.compose import (
    CONTROL_PLANE,
    ROOT,
    SHORT_POLL_S,
    UP_TIMEOUT_S,
    CommandFailed,
    ComposeDeployment,
    LoadClient,
    deployed,
    note,
    run,
)
from tests.services.plain_kafka import Kafka

pytestmark = [pytest.mark.deploy, pytest.mark.slow, pytest.mark.timeout(1500)]

NODES = ("node-1", "node-2", "node-3")
CLUSTER = "stele"
KEYSPACE = "library"  # of the load client
OUTSIDE = "outside"  # keyspace and actor of a client outside of containers
SERVICES_LIMIT_BYTES = 300 * 1000 * 1000
OPERATION_DEADLINE_S = 120.0
REDIS_REBUILT_S = 30.0

CHECK_REDIS = """
import asyncio, json, os
from redis.asyncio import Redis
from stele.session_guard.check import GuardUnavailable, check_version, read_guard

async def main():
    redis = Redis.from_url(os.environ["STELE_REDIS_URL"])
    cluster = os.environ["STELE_CLUSTER"]
    try:
        state = await check_version(redis, cluster, (await read_guard(redis, cluster)).version)
        print(json.dumps({"version": state.version, "fence_version": state.fence_version}))
    except GuardUnavailable as error:
        print(json.dumps({"unavailable": str(error)}))
    await redis.aclose()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def deployment(docker: None) -> Iterator[ComposeDeployment]:
    with deployed() as found:
        yield found


@pytest.fixture(scope="module")
def load(deployment: ComposeDeployment) -> Iterator[LoadClient]:
    """Yield a client that writes and reads once three nodes are members."""
    deployment.has_keyspace(KEYSPACE, NODES)
    client = LoadClient(deployment)
    try:
        yield client
    finally:
        client.kill()


def test_api_console_and_brokers_are_published_only_on_loopback(
    deployment: ComposeDeployment,
) -> None:
    published = {
        (service, binding["HostIp"], binding["HostPort"])
        for service, container in deployment.containers().items()
        for bindings in container["HostConfig"]["PortBindings"].values()
        for binding in bindings
    }
    assert published == {
        ("metadata-log-1", "127.0.0.1", str(deployment.port)),
        ("console", "127.0.0.1", str(deployment.console_port)),
        *((name, "127.0.0.1", str(port)) for name, port in deployment.broker_ports.items()),
    }


def test_services_run_as_a_user_on_a_read_only_file_system(deployment: ComposeDeployment) -> None:
    ours = {n: c for n, c in deployment.containers().items() if "stele/" in c["Config"]["Image"]}
    assert set(ours) >= {*CONTROL_PLANE, *NODES, "placements", "topics"}
    for service, container in ours.items():
        host, config = container["HostConfig"], container["Config"]
        assert host["ReadonlyRootfs"], service
        assert config["User"] == "stele", service
        assert host["Memory"] > 0, service
        assert config["Entrypoint"][0] == "tini", service


def test_services_image_is_small_and_labelled(deployment: ComposeDeployment) -> None:
    image = json.loads(run("docker", "image", "inspect", "stele/services:deploy-test"))[0]
    note(f"stele/services has {image['Size'] / 1e6:.0f} MB")
    assert image["Size"] <= SERVICES_LIMIT_BYTES
    labels = image["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "stele/services"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_every_topic_has_three_replicas(deployment: ComposeDeployment) -> None:
    code = (
        "import json,os\n"
        "from confluent_kafka.admin import AdminClient\n"
        "found = AdminClient({'bootstrap.servers': os.environ['STELE_KAFKA_BOOTSTRAP']})"
        ".list_topics(timeout=240).topics\n"
        "print(json.dumps({n: [len(p.replicas) for p in t.partitions.values()]"
        " for n, t in found.items() if n.startswith('stele.')}))"
    )
    found: dict[str, list[int]] = json.loads(deployment.python("metadata-log-1", code))
    assert "stele.stele.epochs" in found
    assert {copies for topic in found.values() for copies in topic} == {3}


@pytest.mark.usefixtures("load")
def test_client_outside_of_containers_sends_commands_and_reads_topics(
    deployment: ComposeDeployment,
) -> None:
    """The client uses the listener of infra/compose.kafka.yml, which must reach each leading broker."""
    command = CreateKeyspace(OUTSIDE, {"dc1": 3})
    asked = Envelope(request_id=named(OUTSIDE), command=command, actor=OUTSIDE)
    client = Kafka(deployment.bootstrap, CLUSTER)
    try:
        client.send_all([asked])
        (outcome,) = client.wait_for(asked.request_id)
    finally:
        client.close()
    assert outcome.applied, outcome

    def placed() -> bool:
        topic = read_placements(Brokers(deployment.bootstrap), CLUSTER)
        replicas = {node for row in topic.rows.values() for node in row.read_replicas}
        return topic.marker.epoch >= outcome.epoch and replicas == set(NODES)

    deployment.until(placed, f"the topic of placements to reach epoch {outcome.epoch}")


@pytest.mark.usefixtures("load")
def test_analytics_profile_queries_tables_and_cannot_change_them(
    deployment: ComposeDeployment,
) -> None:
    """The command of docs/guides/deploy.md, with another query."""
    sql = f"""
        SELECT actor, outcome, newest_epoch >= epoch AS is_in_lag, node_id, node_state
        FROM audit JOIN lag ON lag.cluster = audit.cluster JOIN nodes ON nodes.cluster = audit.cluster
        WHERE command = 'create_keyspace' AND actor = '{OUTSIDE}' ORDER BY node_id
    """
    found = json.loads(deployment.analytics("stele", "sql", "--json", sql))
    told = {"actor": OUTSIDE, "outcome": "accepted", "is_in_lag": True, "node_state": "normal"}
    assert found == [told | {"node_id": node} for node in NODES]
    with pytest.raises(CommandFailed, match="Read-only file system"):
        deployment.analytics("touch", "/var/lib/stele/delta/nodes/written")
    deployment.add("analytics", "analytics")
    deployment.wait_healthy()
    beeline = ("beeline", "-u", "jdbc:hive2://127.0.0.1:10000/", "--outputformat=csv2", "-e", sql)
    answer = deployment.compose(
        *("exec", "-T", "analytics", *beeline), timeout_s=UP_TIMEOUT_S, profiles="nodes,analytics"
    )
    assert [line for line in answer.splitlines() if OUTSIDE in line] == [
        f"{OUTSIDE},accepted,true,{node},normal" for node in NODES
    ]


@pytest.mark.usefixtures("load")
def test_prometheus_scrapes_every_process_and_evaluates_the_dashboard(
    deployment: ComposeDeployment,
) -> None:
    deployment.add("observability", "prometheus")
    wanted = {*CONTROL_PLANE, *NODES, "placements"}

    def all_up() -> bool:
        targets = _prometheus(deployment, "/api/v1/targets?state=active")["activeTargets"]
        up = {target["labels"]["service"] for target in targets if target["health"] == "up"}
        return up == wanted

    deployment.until(all_up, "Prometheus to reach every process")
    dashboard = json.loads((ROOT / "infra/grafana/dashboards/stele.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found = _prometheus(deployment, f"/api/v1/query?query={quote(target['expr'])}")
            assert "result" in found, target
    epochs = _prometheus(deployment, "/api/v1/query?query=stele_log_epoch")["result"]
    assert {row["metric"]["service"] for row in epochs} == {"metadata-log-1", "metadata-log-2"}


@pytest.mark.usefixtures("load")
def test_node_joins_under_load_while_a_broker_and_the_coordinator_die(
    deployment: ComposeDeployment,
) -> None:
    before = deployment.state()
    active, broker = before["coordinator"]["holder"], _leader_of_the_log(deployment)
    with deployment.ready_to_crash(active) as crash:
        deployment.add("grow", "node-4")
        _until_an_operation_runs(deployment)
        crash()
        deployment.kill(broker)
    note(f"node-4 joins; {active} crashed and {broker}, which leads the log, was killed")
    try:
        deployment.until(
            lambda: deployment.node_states().get("node-4") == "normal",
            "node-4 to be a member",
            OPERATION_DEADLINE_S,
        )
    finally:
        deployment.start(broker)
    note(f"node-4 is a member at epoch {deployment.state()['epoch']}")
    _check_the_coordinator_changed_before_the_end(deployment, before)
    deployment.wait_healthy()
    assert deployment.restarts(active) == 1


@pytest.mark.usefixtures("load")
def test_node_leaves_under_load_while_a_log_and_the_coordinator_die(
    deployment: ComposeDeployment,
) -> None:
    before = deployment.state()
    active = before["coordinator"]["holder"]
    restarts = deployment.restarts(active)
    with (
        deployment.ready_to_crash(active) as crash_coordinator,
        deployment.ready_to_crash("metadata-log-1") as crash_metadata_log,
    ):
        outcome = deployment.submit("leave-node-1", {"type": "leave", "node_id": "node-1"})
        assert outcome["applied"], outcome
        _until_an_operation_runs(deployment)
        crash_coordinator()
        crash_metadata_log()
    note(f"node-1 leaves; {active} and metadata-log-1, the API, crashed")
    deployment.until(
        lambda: deployment.node_states().get("node-1") == "left",
        "node-1 to have left",
        OPERATION_DEADLINE_S,
    )
    note(f"node-1 has left at epoch {deployment.state()['epoch']}")
    _check_the_coordinator_changed_before_the_end(deployment, before)
    deployment.wait_healthy()
    assert deployment.restarts(active) == restarts + 1
    assert deployment.restarts("metadata-log-1") == 1


def test_checks_fail_closed_without_redis_and_it_is_rebuilt(
    deployment: ComposeDeployment,
) -> None:
    def checked() -> dict[str, Any]:
        found = json.loads(deployment.python("session-guard", CHECK_REDIS))
        assert isinstance(found, dict)
        return found

    before = checked()
    assert before["version"] == deployment.state()["topology"]["version"]
    deployment.kill("redis")
    assert "Redis does not answer" in checked()["unavailable"]
    deployment.start("redis")
    deployment.until(
        lambda: checked() == before, "Redis to hold the guard's state again", REDIS_REBUILT_S
    )


def test_no_acknowledged_write_is_lost(load: LoadClient) -> None:
    account = load.stop()
    note(f"the load's account: {json.dumps(account)}")
    assert account["lost"] == []
    assert account["stale_reads"] == []
    assert account["writes_acknowledged"] > 100
    assert len(account["read_back_through"]) == 3


def test_all_processes_have_the_same_state_at_the_same_epoch(deployment: ComposeDeployment) -> None:
    members = ("node-2", "node-3", "node-4")
    found: dict[str, dict[str, Any]] = {}

    def agree() -> bool:
        found.update(deployment.positions((*CONTROL_PLANE, *members)))
        return len({(p["epoch"], p["state_id"], p["hash"]) for p in found.values()}) == 1

    deployment.until(agree, f"one epoch and one hash: {found}")
    one = found["node-4"]
    note(f"{len(found)} processes: epoch {one['epoch']}, hash {one['hash'][:16]}...")

    def materialized() -> bool:
        return bool(deployment.positions(["placements"])["placements"]["epoch"] == one["epoch"])

    deployment.until(materialized, f"Spark to reach epoch {one['epoch']}", 90.0)


def test_all_processes_stop_cleanly_on_request(
    deployment: ComposeDeployment,
) -> None:
    deployment.wait_healthy()
    deployment.compose("stop", timeout_s=180, profiles="nodes,grow,observability")
    ours = {*CONTROL_PLANE, *NODES, "node-4", "placements"}
    codes = {name: state["ExitCode"] for name, state in deployment.states().items()}
    assert {name: code for name, code in codes.items() if name in ours and code != 0} == {}


def test_no_container_logged_an_unexpected_error(deployment: ComposeDeployment) -> None:
    found = {name: unexpected(name, deployment.logs(name)) for name in deployment.containers()}
    bad = {name: lines for name, lines in found.items() if lines}
    assert not bad, "\n".join(
        f"{name}: {line[:600]}" for name, lines in bad.items() for line in lines[:10]
    )


def _until_an_operation_runs(deployment: ComposeDeployment) -> None:
    what = "the operation to begin"
    deployment.until(lambda: deployment.state()["transitions"], what, 60.0, SHORT_POLL_S)


def _check_the_coordinator_changed_before_the_end(
    deployment: ComposeDeployment, before: dict[str, Any]
) -> None:
    """Otherwise the fault was injected too late."""
    commands = [epoch["command"] for epoch in deployment.epochs(before["epoch"] + 1)]
    claims = [at for at, command in enumerate(commands) if command == "claim_coordinator"]
    assert claims, commands
    assert "advance" in commands[claims[0] :], commands


def _leader_of_the_log(deployment: ComposeDeployment) -> str:
    code = (
        "import os\n"
        "from confluent_kafka.admin import AdminClient\n"
        "topic = 'stele.' + os.environ['STELE_CLUSTER'] + '.epochs'\n"
        "found = AdminClient({'bootstrap.servers': os.environ['STELE_KAFKA_BOOTSTRAP']})"
        ".list_topics(topic, timeout=240).topics\n"
        "print(found[topic].partitions[0].leader)"
    )
    return f"kafka-{deployment.python('metadata-log-1', code).strip()}"


def _prometheus(deployment: ComposeDeployment, path: str) -> dict[str, Any]:
    """Return the data of an answer of Prometheus, requested inside the network."""
    code = (
        "import sys,urllib.request as u\n"
        "print(u.urlopen('http://prometheus:9090' + sys.argv[1], timeout=60).read().decode())"
    )
    answer = json.loads(deployment.python("metadata-log-1", code, path))
    assert answer["status"] == "success", answer
    found: dict[str, Any] = answer["data"]
    return found


def test_down_leaves_no_container_and_no_volume(deployment: ComposeDeployment) -> None:
    deployment.down()
    assert deployment.containers() == {}
    volumes = run("docker", "volume", "ls", "--quiet").split()
    assert not [name for name in volumes if name.startswith("stele-deploy-test")]
