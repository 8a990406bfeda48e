"""The Spark session: which Java, which jars, how much memory; loopback only, no network to start."""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from stele.runtime.settings import ConfigurationError

LOOPBACK: Final = "127.0.0.1"
JVM_FLAGS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"
"""For a driver beside other processes on few cores: the session starts in half the time."""

ARROW_RECORDS: Final = 500
"""Records that a worker holds at once: they may be large."""


def spark_session(jars: Path, master: str, memory: str, scratch: Path) -> SparkSession:
    """A session with the connectors in ``jars``. Raises ConfigurationError without Java or jars."""
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName("stele-placements").master(master)
    for name, value in _options(jar_files(jars), memory, scratch).items():
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


def check_java() -> None:
    """Raises ConfigurationError when there is no Java to start."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise ConfigurationError(
        "placements runs Spark, which needs Java 17 or newer, and there is none: install one "
        "(Debian and Ubuntu: apt-get install openjdk-17-jre-headless) or point JAVA_HOME to it."
    )


def _options(jars: list[Path], memory: str, scratch: Path) -> dict[str, str]:
    return {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{JVM_FLAGS} -Dderby.system.home={scratch}",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
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
