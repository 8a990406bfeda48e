"""Properties of the deployment files, checked without Docker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stele.runtime.metrics import REGISTRY
from stele.runtime.settings import KafkaSettings, variable_of

ROOT = Path(__file__).resolve().parents[2]
OURS = ("stele/services:", "stele/placements:")
JOBS = {"topics"}  # a job that ends, without a health check
NOT_WATCHED = JOBS | {"analytics"}  # of an optional profile
READ_ONLY = {
    "analytics": "placements:/var/lib/stele:ro"
}  # the volume of another service, read-only
SERVICES_WITH_METRICS = (
    "catch_up",
    "coordinator",
    "metadata_log",
    "node",
    "placements",
    "session_guard",
)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def test_page_directs_all_services_to_other_brokers(compose: dict[str, Any]) -> None:
    page = (ROOT / "docs/guides/deploy.md").read_text()
    (block,) = re.findall(r"```text\n(x-environment.*?)```", page, re.DOTALL)
    said = yaml.safe_load(block)
    text = (ROOT / "docker-compose.yml").read_text()
    for head in ("x-environment: &environment", "x-service: &service"):
        (lines,) = re.findall(rf"{head}\n((?:  .*\n)+)", block)
        text = text.replace(f"{head}\n", f"{head}\n{lines}")
    text = text.replace(f"  STELE_KAFKA_BOOTSTRAP: {_bootstrap(compose)}\n", "")
    found = yaml.safe_load(text)["services"]
    variables = said["x-environment"]
    for name, service in found.items():
        if service.get("image", "").startswith(OURS):
            assert variables.items() <= service["environment"].items(), name
            assert service["secrets"] == said["x-service"]["secrets"] == [*said["secrets"]], name
    files = {variable: value for variable, value in variables.items() if variable.endswith("FILE")}
    assert {*files.values()} == {f"/run/secrets/{name}" for name in said["secrets"]}
    assert variables.keys() <= {variable_of(name) for name in KafkaSettings.__struct_fields__}


def test_images_copy_files_that_exist_and_that_docker_is_sent() -> None:
    text = (ROOT / "infra/images/Dockerfile").read_text()
    copied = [
        path
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)
        for path in line.split()
    ]
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert "services/stele" in copied
    for path in copied:
        assert (ROOT / path).exists(), path
        assert any(f"{path}/".startswith(f"{each}/") for each in sent), path


def _bootstrap(compose: dict[str, Any]) -> str:
    return str(compose["x-environment"]["STELE_KAFKA_BOOTSTRAP"])


def test_two_ports_are_published_only_on_loopback(compose: dict[str, Any]) -> None:
    published = {n: s["ports"] for n, s in compose["services"].items() if "ports" in s}
    assert sorted(published) == ["console", "metadata-log-1"]
    assert all(p.startswith("127.0.0.1:") for ports in published.values() for p in ports)


def test_dashboards_are_published_by_a_separate_file_on_loopback(
    compose: dict[str, Any],
) -> None:
    found = yaml.safe_load((ROOT / "infra/compose.ports.yml").read_text())["services"]
    assert {"analytics", "grafana", "prometheus"} == found.keys() <= compose["services"].keys()
    for name, service in found.items():
        (port,) = service["ports"]
        assert port.startswith("127.0.0.1:"), name


def test_brokers_are_published_by_a_separate_file_on_loopback(
    compose: dict[str, Any],
) -> None:
    found = yaml.safe_load((ROOT / "infra/compose.kafka.yml").read_text())
    ports: set[str] = set()
    for name, broker in found["services"].items():
        environment = compose["services"][name]["environment"] | broker["environment"]
        secured = environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
        known = {entry.partition(":")[0] for entry in secured}
        listens = listeners(environment["KAFKA_LISTENERS"])
        told = listeners(environment["KAFKA_ADVERTISED_LISTENERS"])
        assert set(listens) == known == {"PLAINTEXT", "CONTROLLER", "EXTERNAL"}
        assert told["PLAINTEXT"] == f"{name}:9092"
        (port,) = broker["ports"]
        assert port == f"{told['EXTERNAL']}{listens['EXTERNAL']}"
        assert port.startswith("127.0.0.1:")
        ports.add(told["EXTERNAL"])
    assert len(ports) == 3


def listeners(text: str) -> dict[str, str]:
    """Return addresses by the name of the listener."""
    return dict(entry.split("://") for entry in text.split(","))


def test_every_container_has_memory_limit_restart_policy_and_one_network(
    compose: dict[str, Any],
) -> None:
    for name, service in compose["services"].items():
        assert service["mem_limit"], name
        assert service["restart"] in {"unless-stopped", "on-failure"}, name
        assert service["networks"] == ["stele"], name
        ours = service["image"].startswith(OURS)  # the image has the health check
        assert ours or "healthcheck" in service or name in JOBS, name


def test_service_containers_write_only_to_their_volume_and_tmp(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if service["image"].startswith(OURS):
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name
            volumes = service.get("volumes", [])
            allowed = f"{name}:/var/lib/stele", READ_ONLY.get(name)
            assert not volumes or volumes in ([each] for each in allowed), name


def test_every_service_has_a_unique_instance_id(compose: dict[str, Any]) -> None:
    """Two services with one id would fence each other out of the consumer group."""
    ours = {n: s for n, s in compose["services"].items() if s["image"].startswith(OURS)}
    assert {n: s["environment"]["STELE_INSTANCE_ID"] for n, s in ours.items()} == {
        name: name for name in ours
    }


def test_compose_files_contain_no_secret() -> None:
    for path in ("docker-compose.yml", ".env.example"):
        text = (ROOT / path).read_text()
        assert not re.search(r"(password|secret|token)\w*\s*[:=]\s*\S", text, re.IGNORECASE), path


def test_example_settings_equal_those_of_compose_with_defaults() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    read = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    example = (ROOT / ".env.example").read_text()
    shown = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert {n: v for n, v in shown.items() if not n.startswith("COMPOSE_")} == read


def test_prometheus_scrapes_every_service(compose: dict[str, Any]) -> None:
    found = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())
    targets: set[str] = set()
    for job in found["scrape_configs"]:
        for group in job.get("static_configs", []):
            targets.update(target.partition(":")[0] for target in group["targets"])
        for group in job.get("dns_sd_configs", []):
            targets.update(group["names"])
    serving = {
        name
        for name, service in compose["services"].items()
        if service["image"].startswith(OURS) and name not in NOT_WATCHED
    }
    assert targets == serving


def test_stop_command_includes_each_profile(compose: dict[str, Any]) -> None:
    profiles = {each for s in compose["services"].values() for each in s.get("profiles", [])}
    (stopped,) = re.findall(r"COMPOSE_PROFILES=(\S+) ", (ROOT / "infra/compose").read_text())
    assert {*stopped.split(",")} == profiles


def test_every_metric_of_dashboards_and_alerts_exists() -> None:
    for service in SERVICES_WITH_METRICS:
        __import__(f"stele.{service}.metrics")
    exists = {sample for family in REGISTRY.collect() for sample in _samples(family)}
    dashboard = json.loads((ROOT / "infra/grafana/dashboards/stele.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = yaml.safe_load((ROOT / "infra/prometheus/alerts.yml").read_text())
    watched = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    named = {name for text in shown + watched for name in re.findall(r"\bstele_\w+", text)}
    assert len(named) > 15
    assert named <= exists, named - exists


def _samples(family: Any) -> set[str]:
    """Return the names of the samples of a metric: a counter has _total, a histogram has _bucket."""
    suffix = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name + end for end in suffix.get(family.type, ("",))}
