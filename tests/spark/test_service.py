"""The process itself: announces, answers, survives kill -9, leaves when its JVM died, ends on SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from tests.polling import wait_until
from tests.spark.checks import assert_materialized, image_hash
from tests.spark.conftest import Append
from tests.spark.histories import images, random_log

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(450)]
READY_S = 200.0  # Spark starts and plans its first batch; 20 s on an idle machine
STOP_S = 20.0


@contextmanager
def running(kafka: str, cluster: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of the service and its address; killed when it is still there at the end."""
    env = {
        **os.environ,
        "STELE_CLUSTER": cluster,
        "STELE_KAFKA_BOOTSTRAP": kafka,
        "STELE_DELTA_DIR": str(folder / "delta"),
    }
    log = (folder.parent / "placements.log").open("a")
    process = subprocess.Popen(
        [sys.executable, "-m", "stele.placements"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder.parent / "placements.log").read_text()[-3000:]
        yield process, msgspec.json.decode(line)["http"]
    finally:
        process.kill()
        process.wait(STOP_S)
        process.stdout.close()
        log.close()


def position(url: str) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{url}/v1/position", timeout=30).json()
    return found


def test_a_killed_jvm_ends_the_process_and_the_next_one_goes_on_and_ends_in_order(
    kafka: str, topics: str, append: Append, folder: Path
) -> None:
    log = random_log(3)
    half = len(log) // 2
    append(topics, log[:half])
    with running(kafka, topics, folder) as (process, url):
        assert httpx.get(f"{url}/healthz", timeout=30).status_code == 503
        events = folder / "delta" / "events" / "_delta_log"
        wait_until((events / f"{1:020}.json").exists, "a commit", READY_S)
        for child in psutil.Process(process.pid).children(recursive=True):
            if child.name() == "java":
                child.kill()
        assert process.wait(READY_S) == 70
    assert "JVM ended" in (folder.parent / "placements.log").read_text()
    append(topics, log[half:])
    last = images(log)[-1]
    with running(kafka, topics, folder) as (process, url):
        wait_until(lambda: position(url)["epoch"] == last.epoch, f"epoch {last.epoch}", READY_S)
        told = position(url)
        assert told["state_id"] == last.state_id.hex()
        assert told["placements_hash"] == image_hash(last)
        assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
        assert "stele_placements_batch_seconds" in httpx.get(f"{url}/metrics", timeout=30).text
        middle = images(log)[last.epoch // 2]
        at = httpx.get(f"{url}/v1/placements", params={"epoch": middle.epoch}, timeout=30).json()
        assert at["placements_hash"] == image_hash(middle)
        late = httpx.get(f"{url}/v1/placements", params={"epoch": 10**9}, timeout=30)
        assert (late.status_code, late.json()["code"]) == (422, "invalid_request")
        append(topics, [b"\xc3\x01" + bytes(8) + last.state_id + bytes(30)])
        wait_until(
            lambda: httpx.get(f"{url}/healthz", timeout=30).status_code == 503, "the stop", READY_S
        )
        health = httpx.get(f"{url}/healthz", timeout=30).json()
        assert "no schema of Epoch" in health["stopped"][topics]
        assert position(url)["stopped"] == health["stopped"]
        metrics = httpx.get(f"{url}/metrics", timeout=30).text
        assert f'stele_placements_stopped{{cluster="{topics}"}} 1.0' in metrics
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    assert_materialized(kafka, folder / "delta", topics, log)


def test_a_process_killed_while_it_writes_leaves_nothing_half_done(
    kafka: str, topics: str, append: Append, folder: Path, spark: object
) -> None:
    from tests.spark.test_job import make_options, run_to_end

    log = random_log(2)
    append(topics, log[:70])
    with running(kafka, topics, folder) as (process, _):
        events = folder / "delta" / "events" / "_delta_log"
        wait_until((events / f"{1:020}.json").exists, "a commit", READY_S)
        append(topics, log[70:])
        process.send_signal(signal.SIGKILL)
        process.wait(STOP_S)
    run_to_end(spark, make_options(kafka, topics, folder), folder, log)  # type: ignore[arg-type]
    assert_materialized(kafka, folder / "delta", topics, log)


def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    result = subprocess.run(
        [sys.executable, "-m", "stele.placements"],
        env={**env, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 78
    assert "needs Java 17" in result.stderr
