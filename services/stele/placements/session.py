"""The Spark session: which Java, which jars, how much memory; no network to start."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from stele.runtime.java import SPARK, Java, JavaMissing, find_java, with_classes_of
from stele.runtime.settings import ConfigurationError

LOOPBACK: Final = "127.0.0.1"
JVM_FLAGS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"
"""For a driver beside other processes on few cores: the session starts in half the time."""

MOST_CONSUMERS: Final = 2048
"""Two stay open for each cluster: with Spark's 64 a larger fleet opens each of them anew for every batch."""
ARROW_RECORDS: Final = 500
"""Records that a worker holds at once: they may be large."""


def spark_session(
    jars: Path,
    master: str,
    memory: str,
    scratch: Path,
    driver_host: str = LOOPBACK,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the connectors in ``jars``. Raises ConfigurationError without Java or jars.

    ``driver_host`` is where executors on other machines reach this process; ``options`` win over the job's.
    Below ``spark-submit`` the JVM runs already, and master, memory and jars are those that were given to it.
    """
    others = {**_options(scratch), **_addresses(driver_host), **(options or {})}
    if is_submitted():
        return _built(others)
    java = choose_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", driver_host)
    flags = " ".join((JVM_FLAGS, *map(_quoted, with_classes_of(java, jars))))
    of_the_jvm = _of_the_jvm(master, jar_files(jars), memory, scratch, flags)
    return _built({**of_the_jvm, **others})


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _built(options: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("stele-placements")
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def jar_files(folder: Path) -> list[Path]:
    """Every jar under the folder. Raises ConfigurationError when there is none."""
    found = sorted(folder.rglob("*.jar"))
    if not found:
        text = f"STELE_SPARK_JARS={folder}: no jars are there. Run make setup, or set it to their folder."
        raise ConfigurationError(text)
    return found


def default_jars() -> Path:
    """Where `make setup` puts the jars: ``.cache/jars/spark`` of STELE_HOME or of the checkout."""
    home = os.environ.get("STELE_HOME")
    root = Path(home) if home else Path(__file__).resolve().parents[3]
    return root / ".cache" / "jars" / "spark"


def choose_java() -> Java:
    """Have Spark start a Java that it can use, and say which. Raises ConfigurationError when there is none."""
    try:
        java = find_java(SPARK)
    except JavaMissing as missing:
        raise ConfigurationError(str(missing)) from missing
    os.environ["JAVA_HOME"] = str(java.home)  # what Spark's launcher goes by
    return java


def _addresses(driver_host: str) -> dict[str, str]:
    return {"spark.driver.host": driver_host, "spark.driver.bindAddress": driver_host}


def _quoted(option: str) -> str:
    """Spark splits options at spaces, which a path may have."""
    return f'"{option}"'


def _of_the_jvm(
    master: str, jars: list[Path], memory: str, scratch: Path, flags: str
) -> dict[str, str]:
    """What has to be known before it starts."""
    return {
        "spark.master": master,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{flags} -Dderby.system.home={scratch}",
    }


def _options(scratch: Path) -> dict[str, str]:
    return {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Options of a source, wherever Spark shows them: the password is in jaas, the key in keystore.
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.python.daemon.module": "stele.placements.worker_daemon",
        "spark.kafka.consumer.cache.capacity": str(MOST_CONSUMERS),
        "spark.sql.session.timeZone": "UTC",
        # Batches are small: planning again and compiling code cost more than they save.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.stopTimeout": "8s",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS),
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    }
