"""The whole stack, with a small service of the test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from stele_harness.stack.lifecycle import OURS
from stele_harness.stack.stack import (
    PORTS_FILE,
    SERVICES,
    STACK_FILE,
    ServiceSpec,
    Stack,
    node_specs,
)
from stele_harness.stack.supervisor import ChildFailed, ProcessState

FAKE = """
import os
from starlette.responses import JSONResponse
from starlette.routing import Route
from stele.runtime.http import Health, build_app, serve
from stele.log.flows import flow_topic
from stele.runtime.kafka import Topic
from stele.runtime.service import run_service
from stele.runtime.settings import ServiceSettings, load_settings
from confluent_kafka.admin import AdminClient

async def main(stop):
    settings = load_settings(ServiceSettings)
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    there = flow_topic(settings.cluster, Topic.EPOCHS) in admin.list_topics(timeout=240).topics
    async def env(request):
        return JSONResponse({k: v for k, v in os.environ.items() if k.startswith("STELE_")})
    app = build_app("fake", [Route("/env", env)], lambda: Health(ok=there))
    await serve(app, settings, "fake", stop)

raise SystemExit(run_service(main))
"""

FakeModule = Callable[[str, str], Path]


def stack_of(directory: Path, modules: Path, *specs: ServiceSpec) -> Stack:
    path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
    return Stack(directory, nodes=0, services=specs, env={"PYTHONPATH": path})


@pytest.mark.broker
def test_stack_starts_restarts_and_leaves_no_process(
    tmp_path: Path, fake_module: FakeModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_KAFKA_SECURITY_PROTOCOL", "SSL")  # the settings of other brokers
    modules = fake_module("fake_service", FAKE)
    spec = ServiceSpec("fake", "fake_service", {"STELE_DATA_DIR": "{directory}"}, count=2)
    with stack_of(tmp_path / "run", modules, spec) as stack:
        written = json.loads((tmp_path / "run" / STACK_FILE).read_text())
        assert [child["name"] for child in written["services"]] == ["fake-1", "fake-2"]
        url = stack.url("fake-2")
        assert httpx.get(f"{url}/healthz", timeout=240).json()["ok"] is True
        env = httpx.get(f"{url}/env", timeout=240).json()
        assert env["STELE_INSTANCE_ID"] == "fake-2"
        assert "STELE_KAFKA_SECURITY_PROTOCOL" not in env
        assert env["STELE_FAKE_URLS"] == f"{stack.url('fake-1')},{url}"
        assert Path(env["STELE_DATA_DIR"]).is_dir()

        stack.kill("fake-2")
        stack.supervisor.wait_state("fake-2", ProcessState.BACKING_OFF)
        stack.supervisor.wait_state("fake-2", ProcessState.RUNNING)
        assert stack.supervisor.wait_url("fake-2") == url
        assert httpx.get(f"{url}/healthz", timeout=240).status_code == 200

        pids = [child.pid for child in stack.supervisor.status()]
        pids += [stack.redis.pid, *(broker.pid for broker in stack.kafka.brokers)]
        assert all(pid is not None and psutil.pid_exists(pid) for pid in pids)
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    assert not (tmp_path / "run" / STACK_FILE).exists()
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert PORTS_FILE in left and left <= OURS, "what a stack makes it can purge"


@pytest.mark.broker
def test_service_that_cannot_start_fails_the_stack_with_its_output(
    tmp_path: Path, fake_module: FakeModule
) -> None:
    modules = fake_module("broken_service", "raise SystemExit('bad disk')")
    stack = stack_of(tmp_path / "run", modules, ServiceSpec("broken", "broken_service"))
    with pytest.raises(ChildFailed, match="bad disk"):
        stack.start()
    assert not any(broker.is_running() for broker in stack.kafka.brokers)


@pytest.mark.broker
def test_existing_node_that_cannot_start_does_not_fail_the_stack(
    tmp_path: Path, fake_module: FakeModule
) -> None:
    """Its join may have been cancelled. The other processes are still needed."""
    modules = fake_module("ended_node", "raise SystemExit(78)")
    ended = ServiceSpec("n7", "ended_node")
    with pytest.raises(ChildFailed):
        stack_of(tmp_path / "new", modules, ended).start()
    folder = tmp_path / "run" / "services" / "n7"
    folder.mkdir(parents=True)
    (folder / "node.json").write_text("{}")
    with stack_of(tmp_path / "run", modules, ended) as stack:
        assert stack.supervisor.status_of("n7").state is ProcessState.GIVEN_UP


def test_chosen_rack_of_a_node_is_kept_for_later_stacks(tmp_path: Path) -> None:
    """A node fails to start in another rack than the one that it joined."""
    spec = node_specs(5)[-1]
    first = Stack(tmp_path, nodes=0, services=())
    assert first.choose(spec, {"STELE_RACK": "r7"}).env["STELE_RACK"] == "r7"
    later = Stack(tmp_path, nodes=5, services=())
    assert {s.name: s.env["STELE_RACK"] for s in later._specs} == {
        "n1": "r1",
        "n2": "r2",
        "n3": "r3",
        "n4": "r1",
        "n5": "r7",
    }


def test_nodes_are_spread_over_racks() -> None:
    racks = [spec.env["STELE_RACK"] for spec in node_specs(4)]
    assert racks == ["r1", "r2", "r3", "r1"]


def test_table_of_services_is_complete() -> None:
    assert {spec.name for spec in SERVICES} == {
        "metadata-log",
        "session-guard",
        "catch-up",
        "coordinator",
        "tablet-balancer",
        "placements",
        "console",
    }
