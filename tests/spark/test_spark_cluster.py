"""The same job on a real Spark cluster: a master and two workers, of which one is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from stele.stack.ports import free_port
from tests.polling import wait_until
from tests.spark.checks import assert_materialized
from tests.spark.conftest import Append
from tests.spark.histories import images, random_log
from tests.spark.test_service import READY_S, position, running

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]
HOST = "127.0.0.1"
CONFIGURATION = """
spark.executor.memory 512m
spark.executor.cores 1
spark.cores.max 2
"""
"""What an operator writes into spark-defaults.conf."""


@contextmanager
def daemon(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's own, and whatever it starts."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    name = f"{arguments[0].rpartition('.')[2]}-{free_port()}"
    with (folder / f"{name}.log").open("wb") as log:
        env = {**os.environ, "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
        process = subprocess.Popen([script, *arguments], env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        lose(process)


def lose(process: subprocess.Popen[bytes]) -> None:
    """Kill it with its executors, as a machine that is lost."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in children:
            if child.is_running():
                child.kill()
        process.wait(20)


def test_the_job_runs_on_a_master_with_two_workers_and_survives_the_loss_of_one(
    kafka: str,
    topics: str,
    append: Append,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, port = random_log(3), free_port()
    half = len(log) // 2
    append(topics, log[:half])
    configuration = tmp_path / "conf"
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text(CONFIGURATION)
    monkeypatch.setenv("SPARK_CONF_DIR", str(configuration))
    monkeypatch.setenv("STELE_SPARK_MASTER", f"spark://{HOST}:{port}")
    package = "org.apache.spark.deploy"
    with ExitStack() as stack:
        web = ("--webui-port", "0")
        master = ("--host", HOST, "--port", str(port), *web)
        stack.enter_context(daemon(tmp_path, f"{package}.master.Master", *master))
        workers = [
            stack.enter_context(
                daemon(
                    tmp_path,
                    f"{package}.worker.Worker",
                    *("--host", HOST, "--cores", "1", "--memory", "600m", *web),
                    *("--work-dir", str(tmp_path / f"work-{number}"), f"spark://{HOST}:{port}"),
                )
            )
            for number in range(2)
        ]
        _, url = stack.enter_context(running(kafka, topics, folder))
        reach(url, images(log[:half])[-1].epoch)
        lose(workers[0])
        append(topics, log[half:])
        reach(url, images(log)[-1].epoch)
        assert_materialized(kafka, folder / "delta", topics, log)


def reach(url: str, epoch: int) -> None:
    wait_until(lambda: position(url)["epoch"] == epoch, f"epoch {epoch}", READY_S)
