"""What can be set, with the reason for each default."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, field
from pyspark.sql import SparkSession

from stele.placements.store import TableStore
from stele.runtime.java import SPARK, Java, JavaMissing, find_java, with_classes_of
from stele.runtime.settings import ConfigurationError, ServiceSettings

# The Spark session: which Java, which jars, how much memory. It needs no network to start.


LOOPBACK: Final = "127.0.0.1"
JVM_FLAGS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"
"""For a driver beside other processes on few cores: the session starts in half the time."""

MOST_CONSUMERS: Final = 2048
"""Each cluster keeps two open.

With Spark's 64, a larger fleet would open each of them in every batch.
"""
ARROW_RECORDS: Final = 500
"""Most records in a worker at once, because they may be large."""


def spark_session(
    jars: Path,
    master: str,
    memory: str,
    scratch: Path,
    driver_host: str = LOOPBACK,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with the connectors in ``jars``.

    Raises ConfigurationError without Java or jars.

    Executors on other machines reach this process at ``driver_host``. ``options`` override the
    job's. Under ``spark-submit`` the JVM already runs, with the master, memory and jars that it was
    started with.
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
    """Return whether ``spark-submit`` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _built(options: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("stele-placements")
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def jar_files(folder: Path) -> list[Path]:
    """Return every jar under the folder. Raises ConfigurationError when there is none."""
    found = sorted(folder.rglob("*.jar"))
    if not found:
        text = f"STELE_SPARK_JARS={folder}: no jars are there. Run make setup, or set it to their folder."
        raise ConfigurationError(text)
    return found


def default_jars() -> Path:
    """Return where `make setup` puts the jars: ``.cache/jars/spark`` of STELE_HOME or of the
    checkout.
    """
    home = os.environ.get("STELE_HOME")
    root = Path(home) if home else Path(__file__).resolve().parents[3]
    return root / ".cache" / "jars" / "spark"


def choose_java() -> Java:
    """Select a Java for Spark, and return it. Raises ConfigurationError when there is none."""
    try:
        java = find_java(SPARK)
    except JavaMissing as missing:
        raise ConfigurationError(str(missing)) from missing
    os.environ["JAVA_HOME"] = str(java.home)  # Spark's launcher reads it
    return java


def _addresses(driver_host: str) -> dict[str, str]:
    return {"spark.driver.host": driver_host, "spark.driver.bindAddress": driver_host}


def _quoted(option: str) -> str:
    """Quote an option: Spark splits options at spaces, which a path may contain."""
    return f'"{option}"'


def _of_the_jvm(
    master: str, jars: list[Path], memory: str, scratch: Path, flags: str
) -> dict[str, str]:
    """Return the options that must be set before the JVM starts."""
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
        # Options of a source, wherever Spark shows them: the password is in jaas, the key in
        # keystore.
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.python.daemon.module": "stele.placements.worker_daemon",
        "spark.kafka.consumer.cache.capacity": str(MOST_CONSUMERS),
        "spark.sql.session.timeZone": "UTC",
        # Batches are small: adaptive planning and code generation cost more than they save.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.stopTimeout": "8s",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS),
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    }


class PlacementsSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, and those of the Spark job."""

    data_dir: Annotated[Path, Meta(description="Folder of all that this service keeps.")] = Path(
        ".stele/placements"
    )
    delta_dir: Annotated[
        TableStore | None,
        Meta(
            description="Path or s3://BUCKET/PREFIX of the Delta tables; default: delta in the data folder."
        ),
    ] = None
    clusters_pattern: Annotated[
        str,
        Meta(
            description="Regular expression of the clusters of a fleet; empty: STELE_CLUSTER alone."
        ),
    ] = ""
    spark_jars: Annotated[Path, Meta(description="Folder that holds the connectors' jars.")] = (
        field(default_factory=default_jars)
    )
    spark_master: Annotated[
        str, Meta(description="Spark's master; clusters are judged in parallel.")
    ] = "local[2]"
    spark_driver_host: Annotated[
        str,
        Meta(
            description="Where executors on other machines reach this process; an address of this machine."
        ),
    ] = LOOPBACK
    spark_driver_memory: Annotated[
        str,
        Meta(
            pattern=r"^[0-9]+[mg]$",
            description="Heap of the driver; in local mode it holds a batch of records too.",
        ),
    ] = "768m"
    trigger_interval_ms: Annotated[
        int, Meta(ge=50, description="Least time between the starts of two batches; milliseconds.")
    ] = 200
    max_offsets_per_trigger: Annotated[
        int, Meta(ge=1, description="Most records in a batch: bounds memory when catching up.")
    ] = 5000

    placement_schema_ids: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{1,10}=[0-9a-f]{16}(,[0-9]{1,10}=[0-9a-f]{16})*)?$",
            description="The topic placements in Confluent's framing: by a registry's id the fingerprint of the"
            " schema, of PlacementRow and of PlacementsMarker; with one of SchemaObject the topic schema too;"
            " empty: in single-object encoding.",
        ),
    ] = ""
    movements: Annotated[
        bool,
        Meta(
            description="Whether reports of streams are read too, and the table movements is written."
        ),
    ] = True

    def store(self) -> TableStore:
        """Where the tables are."""
        return self.delta_dir or TableStore(self.data_dir / "delta")


class SqlServerSettings(PlacementsSettings, frozen=True, kw_only=True):
    """Those of the SQL server; of the job's it reads where the tables are, and what Spark is started with."""

    sql_host: Annotated[
        str, Meta(description="Address to take SQL clients on; 0.0.0.0 in a container.")
    ] = LOOPBACK
    sql_port: Annotated[
        int, Meta(ge=1, le=65535, description="Port for them; that of every HiveServer2.")
    ] = 10000
