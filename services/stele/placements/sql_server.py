"""``python -m stele.placements.sql_server``: the tables for dashboards, through Spark's own
Thrift server.

Clients connect with JDBC, ODBC or HiveServer2's protocol. They cannot write through the names that
it serves: tables are served as views of their files, which each query opens again.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from stele.placements.queries import VIEWS, missing, view
from stele.placements.runner import check_jvm, reason_of
from stele.placements.settings import SqlServerSettings, choose_java, jar_files, spark_session
from stele.placements.store import TableStore
from stele.placements.tables import SCHEMAS
from stele.runtime.http import Health, build_app, serve
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop, run_service, started

NAME: Final = "sql-server"
LOOK_S: Final = 5.0
"""Interval for finding new tables, and for checking that the JVM still runs."""
MOST_RESULT: Final = "256m"
"""A larger answer is refused with an error, before it fills the shared heap of 768 MB."""
STARTING: Final = "Spark is starting; try again in a moment."
NO_TABLES: Final = (
    "There are no tables yet: start placements, or set STELE_DELTA_DIR to where they are."
)

log = get_logger(__name__)


class SqlServer:
    """One Spark session and its port. Each call blocks, and calls must not overlap."""

    def __init__(self, settings: SqlServerSettings, scratch: Path) -> None:
        self.reason = STARTING
        self._settings = settings
        self._scratch = scratch
        self._store = settings.store()
        self._spark: SparkSession | None = None

    def health(self) -> Health:
        return Health(ok=not self.reason, reason=self.reason)

    def start(self) -> None:
        """Start Spark and listen.

        Raises ConfigurationError, and Spark's error for a port in use.
        """
        settings = self._settings
        self._spark = spark = spark_session(
            settings.spark_jars,
            settings.spark_master,
            settings.spark_driver_memory,
            self._scratch,
            settings.spark_driver_host,
            options_of(settings, self._scratch),
        )
        self._add_views(spark)
        jvm = spark._jvm  # noqa: SLF001 - as in Spark's documentation: no Python API exists
        assert jvm is not None
        context = spark._jsparkSession.sqlContext()  # noqa: SLF001
        jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2.startWithContext(context)
        log.info("SQL clients can connect", host=settings.sql_host, port=settings.sql_port)

    def tend(self) -> None:
        """Add views for new tables, and restore views that a client has dropped.

        Raises SparkGone.
        """
        assert self._spark is not None
        check_jvm(self._spark, self.reason)
        self._add_views(self._spark)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()

    def _add_views(self, spark: SparkSession) -> None:
        known: set[str] = set()
        for name in SCHEMAS:
            if self._store.is_there(name):
                path = path_of(self._store, name)
                _show(spark, name, f"SELECT * FROM delta.`{path}`")
                known.add(name)
        for name in VIEWS:
            if not missing(name, known):
                _show(spark, name, view(name, "spark"))
        self.reason = "" if known else NO_TABLES


def _show(spark: SparkSession, name: str, query: str) -> None:
    if not spark.catalog.tableExists(name):
        spark.sql(f"CREATE VIEW IF NOT EXISTS {name} AS {query}")


def path_of(store: TableStore, name: str) -> str:
    """Return the address in Spark's form: Hadoop's connector has another scheme for S3."""
    return store.uri(name).replace("s3://", "s3a://", 1).replace("`", "``")


def options_of(settings: SqlServerSettings, scratch: Path) -> Mapping[str, str]:
    """Return the options in which a session for people differs from the job's."""
    hive = scratch / "hive"
    hive.mkdir()
    return {
        # Queries run in threads that have the class path of the JVM, but not the jars of a session.
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in jar_files(settings.spark_jars)),
        "spark.driver.maxResultSize": MOST_RESULT,
        # Names are kept in memory. Hive opens its own store when a client leaves, and needs an
        # empty one.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:unused;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.hadoop.hive.exec.scratchdir": str(hive),
        "spark.hadoop.hive.exec.local.scratchdir": str(hive),
        "spark.hadoop.hive.server2.thrift.bind.host": settings.sql_host,
        "spark.hadoop.hive.server2.thrift.port": str(settings.sql_port),
        # Options that the job disables for its small batches.
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
    }


async def main(stop: Stop) -> None:
    settings = started(NAME, SqlServerSettings)
    choose_java()
    with tempfile.TemporaryDirectory(prefix="stele-sql-", ignore_cleanup_errors=True) as scratch:
        server = SqlServer(settings, Path(scratch))
        running = asyncio.create_task(_run(server, stop), name="sql")
        try:
            await serve(build_app(NAME, [], server.health), settings, NAME, stop)
        finally:
            await running


async def _run(server: SqlServer, stop: Stop) -> None:
    """Run until the stop request. Raises errors that need a new process."""
    try:
        await asyncio.to_thread(server.start)
        while not await stop.sleep(LOOK_S):
            await asyncio.to_thread(server.tend)
    except Exception as error:
        server.reason = reason_of(error)
        stop.request(server.reason)
        raise
    finally:
        await asyncio.to_thread(server.stop)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
