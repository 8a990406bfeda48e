"""The service process: announcements, answers, kill -9, and the end when its JVM died."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.deployment.process import PLAIN_HTTP
from tests.polling import wait_until
from tests.spark.checks import assert_materialized, image_hash
from tests.spark.conftest import Append
from tests.spark.descendants import below, is_jvm, kill
from tests.spark.histories import images, random_log, unknown

pytestmark = [pytest.mark.spark, pytest.mark.broker]
READY_S = 200.0  # Spark starts and plans its first batch: 20 s on an idle machine
STOP_S = 150.0


JOB = (sys.executable, "-m", "stele.placements")


@contextmanager
def running(
    kafka: str, cluster: str, folder: Path, argv: Sequence[str] = JOB
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process of the service and its address. The process is killed if it still runs at the end."""
    env = {
        **os.environ,
        "STELE_CLUSTER": cluster,
        "STELE_KAFKA_BOOTSTRAP": kafka,
        "STELE_DELTA_DIR": str(folder / "delta"),
    }
    log = (folder.parent / "placements.log").open("a")
    process = subprocess.Popen(
        argv,
        env=env,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert process.stdout is not None
    try:
        told = (
            line for line in process.stdout if '"http"' in line
        )  # spark-submit writes logs there too
        line = next(told, "")
        assert line, (folder.parent / "placements.log").read_text()[-3000:]
        yield process, msgspec.json.decode(line)["http"]
    finally:
        process.kill()
        process.wait(STOP_S)
        process.stdout.close()
        log.close()


def position(url: str) -> dict[str, object]:
    found: dict[str, object] = httpx.get(
        f"{url}/v1/position", timeout=240, verify=PLAIN_HTTP
    ).json()
    return found


@pytest.mark.slow
def test_killed_process_loses_nothing_and_a_dead_jvm_ends_the_process(
    kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log = random_log(3)
    half = len(log) // 2
    append(topics, log[:half])
    with running(kafka, topics, folder) as (process, url):
        assert httpx.get(f"{url}/healthz", timeout=240).status_code == 503
        events = folder / "delta" / "events" / "_delta_log"
        wait_until((events / f"{1:020}.json").exists, "a commit", READY_S)
        append(topics, log[half:])
        process.send_signal(signal.SIGKILL)
        process.wait(STOP_S)
    with running(kafka, topics, folder) as (process, url):
        check_answers(url, log)
        append(topics, [unknown(images(log)[-1])])
        check_stop(url, topics)
        kill(below(process.pid, is_jvm))
        assert process.wait(READY_S) == 70
    assert "JVM ended" in (folder.parent / "placements.log").read_text()
    assert_materialized(kafka, folder / "delta", topics, log)


def check_answers(url: str, log: tuple[bytes, ...]) -> None:
    last = images(log)[-1]
    wait_until(lambda: position(url)["epoch"] == last.epoch, f"epoch {last.epoch}", READY_S)
    told = position(url)
    assert told["state_id"] == last.state_id.hex()
    assert told["placements_hash"] == image_hash(last)
    assert httpx.get(f"{url}/healthz", timeout=240).status_code == 200
    check_metrics(httpx.get(f"{url}/metrics", timeout=240).text)
    middle = images(log)[last.epoch // 2]
    at = httpx.get(f"{url}/v1/placements", params={"epoch": middle.epoch}, timeout=240).json()
    assert at["placements_hash"] == image_hash(middle)
    late = httpx.get(f"{url}/v1/placements", params={"epoch": 10**9}, timeout=240)
    assert (late.status_code, late.json()["code"]) == (400, "invalid_request")


def check_metrics(text: str) -> None:
    """Check that the process exposes each metric of its alerts and dashboard panels."""
    infra = Path(__file__).resolve().parents[2] / "infra"
    files = (infra / "prometheus/alerts.yml", infra / "grafana/dashboards/stele.json")
    named = {
        name for file in files for name in re.findall(r"\bstele_placements_\w+", file.read_text())
    }
    exposed = set(re.findall(r"^(?:# TYPE )?(stele_placements_\w+)", text, re.MULTILINE))
    assert len(named) >= 6
    assert named <= exposed, named - exposed


def check_stop(url: str, cluster: str) -> None:
    wait_until(
        lambda: httpx.get(f"{url}/healthz", timeout=240).status_code == 503, "the stop", READY_S
    )
    health = httpx.get(f"{url}/healthz", timeout=240).json()
    assert "no schema has fingerprint" in health["stopped"][cluster]
    assert position(url)["stopped"] == health["stopped"]
    metrics = httpx.get(f"{url}/metrics", timeout=240).text
    assert f'stele_placements_stopped{{cluster="{cluster}"}} 1.0' in metrics
    assert f'stele_placements_strays{{cluster="{cluster}"}} 2.0' in metrics


NOTHING_INSTALLED = """
import runpy
from stele.runtime import java
java.INSTALLED = ()
runpy.run_module("stele.placements", run_name="__main__")
"""


def test_start_without_java_names_what_to_install(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    result = subprocess.run(
        [sys.executable, "-c", NOTHING_INSTALLED],
        env={**env, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 78
    assert "needs Java 17" in result.stderr
