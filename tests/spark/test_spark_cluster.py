"""The job on a real Spark cluster with a master and two workers: a worker is lost, and then the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from stele.placements.settings import choose_java, default_jars, jar_files
from stele_harness.stack.ports import free_port
from tests.docs.pages import blocks
from tests.polling import wait_until
from tests.spark.checks import assert_materialized
from tests.spark.conftest import Append
from tests.spark.descendants import below, kill
from tests.spark.histories import images, random_log
from tests.spark.test_service import READY_S, position, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]
HOST = "127.0.0.1"
PAGE = "docs/reference/placements.md"


def documented(title: str) -> str:
    """Return the content of a file on the page. Its first line names the file."""
    (block,) = [b for b in blocks(PAGE) if b.language == "text" and title in b.lines[0]]
    return "\n".join(block.lines)


@contextmanager
def daemon(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a daemon of Spark. It is killed with its children at the end."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    name = f"{arguments[0].rpartition('.')[2]}-{free_port()}"
    with (folder / f"{name}.log").open("wb") as log:
        env = {**os.environ, "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
        process = subprocess.Popen([script, *arguments], env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        kill_with_executors(process)


def kill_with_executors(process: subprocess.Popen[Any]) -> None:
    """Kill a worker with its executors, like the loss of a machine."""
    if process.poll() is None:
        children = below(process.pid)
        process.kill()
        kill(children)
        process.wait(20)


@contextmanager
def spark_cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Yield the address of a master, and its two workers."""
    port, package, web = free_port(), "org.apache.spark.deploy", ("--webui-port", "0")
    with ExitStack() as stack:
        master = ("--host", HOST, "--port", str(port), *web)
        stack.enter_context(daemon(folder, f"{package}.master.Master", *master))
        workers = [
            stack.enter_context(
                daemon(
                    folder,
                    f"{package}.worker.Worker",
                    *("--host", HOST, "--cores", "1", "--memory", "600m", *web),
                    *("--work-dir", str(folder / f"work-{number}"), f"spark://{HOST}:{port}"),
                )
            )
            for number in range(2)
        ]
        yield f"spark://{HOST}:{port}", workers


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the settings of the page into a folder that Spark reads."""
    configuration = tmp_path / "conf"
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text(documented("a master of Spark's own"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(configuration))


@pytest.mark.usefixtures("configured")
def test_job_on_a_spark_cluster_survives_the_loss_of_worker_and_driver(
    kafka: str,
    topics: str,
    append: Append,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = random_log(3)
    half, most = len(log) // 2, len(log) * 3 // 4
    append(topics, log[:half])
    with ExitStack() as stack:
        address, workers = stack.enter_context(spark_cluster(tmp_path))
        monkeypatch.setenv("STELE_SPARK_MASTER", address)
        process, url = stack.enter_context(running(kafka, topics, folder))
        reach(url, images(log[:half])[-1].epoch)
        wait_for_executors(workers)
        kill_with_executors(workers[0])
        append(topics, log[half:most])
        reach(url, images(log[:most])[-1].epoch)
        kill_with_executors(process)
        append(topics, log[most:])
        _, url = stack.enter_context(running(kafka, topics, folder))
        reach(url, images(log)[-1].epoch)
        assert_materialized(kafka, folder / "delta", topics, log)


def submitted(folder: Path, address: str) -> list[str]:
    """Return the command line of the page."""
    script = folder / "stele_job.py"
    script.write_text(documented("# stele_job.py"))
    jars = ",".join(str(jar) for jar in jar_files(default_jars()))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return [str(submit), "--master", address, "--jars", jars, str(script)]


@pytest.mark.usefixtures("configured")
def test_job_runs_with_spark_submit_and_ends_with_its_jvm(
    kafka: str,
    topics: str,
    append: Append,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = random_log(3)
    half, most = len(log) // 2, len(log) * 3 // 4
    append(topics, log[:half])
    choose_java()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with ExitStack() as stack:
        address, workers = stack.enter_context(spark_cluster(tmp_path))
        argv = submitted(tmp_path, address)
        jvm, url = stack.enter_context(running(kafka, topics, folder, argv))
        reach(url, images(log[:half])[-1].epoch)
        (job,) = below(jvm.pid, lambda each: each.cmdline()[-1:] == argv[-1:])
        wait_for_executors(workers)
        kill_with_executors(workers[0])
        append(topics, log[half:most])
        reach(url, images(log[:most])[-1].epoch)
        jvm.kill()
        job.wait(READY_S)
        append(topics, log[most:])
        _, url = stack.enter_context(running(kafka, topics, folder, argv))
        reach(url, images(log)[-1].epoch)
        assert_materialized(kafka, folder / "delta", topics, log)


def wait_for_executors(workers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until each worker has an executor. A slow worker gets one after the first batch."""
    wait_until(
        lambda: all(below(worker.pid) for worker in workers), "an executor at each worker", READY_S
    )


def reach(url: str, epoch: int) -> None:
    wait_until(lambda: position(url)["epoch"] == epoch, f"epoch {epoch}", READY_S)


@pytest.mark.parametrize("where", ["a master of Spark's own", "Kubernetes", "YARN"])
def test_each_spark_setting_of_the_page_exists_and_has_a_valid_value(
    spark: SparkSession, where: str
) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    for holder in (
        "deploy.k8s.Config$",
        "deploy.yarn.config.package$",
    ):  # these classes register their settings
        jvm.java.lang.Class.forName(f"org.apache.spark.{holder}")
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    settings = [line.split() for line in documented(where).splitlines() if line[0] != "#"]
    assert len(settings) >= 3
    for name, value in settings:
        entry = entries.findEntry(name)
        assert entry is not None, f"Spark knows no {name}"
        entry.valueConverter().apply(value)
    with pytest.raises(Exception, match=r"should be int|NumberFormatException"):
        entries.findEntry("spark.executor.instances").valueConverter().apply("two")
