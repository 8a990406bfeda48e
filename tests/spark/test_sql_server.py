"""The SQL server as seen by a dashboard: Hive's JDBC driver in Spark's client, on real tables."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import psutil
import pyspark
import pytest

from stele.placements.queries import VIEWS, run
from stele.placements.settings import choose_java
from stele.placements.sql_server import path_of
from stele.placements.store import TableStore
from stele.placements.tables import SCHEMAS
from stele.runtime.service import EXIT_INTERNAL_ERROR
from stele_harness.stack.ports import free_port
from tests.deployment.process import PLAIN_HTTP
from tests.polling import wait_until
from tests.spark.filled import fill

READY_S = 200.0
CLIENT_S = 120.0
STOP_S = 150.0
PROMPT = re.compile(r"^0: jdbc:hive2:\S+> ", re.MULTILINE)
"""Sometimes printed before an answer, although the client is silent."""


class Server:
    """The server process, and the answers to its clients."""

    def __init__(self, process: subprocess.Popen[str], http: str, port: int) -> None:
        self.process, self._http, self._port = process, http, port

    def reason(self) -> str:
        """Return why the server is unhealthy, or an empty text."""
        found = httpx.get(f"{self._http}/healthz", timeout=240, verify=PLAIN_HTTP).json()
        return str(found["reason"])

    def ask(self, sql: str) -> list[dict[str, str]]:
        """Return the rows of an answer. Raises CalledProcessError with the server's error in ``stderr``."""
        beeline = Path(pyspark.__file__).parent / "bin" / "beeline"
        url = f"jdbc:hive2://127.0.0.1:{self._port}/"
        argv = [str(beeline), "-u", url, "-n", "ada", "--silent=true", "--outputformat=csv2"]
        done = subprocess.run(
            [*argv, "-e", sql], capture_output=True, text=True, timeout=CLIENT_S, check=True
        )
        return [*csv.DictReader(PROMPT.sub("", done.stdout).splitlines())]


@contextmanager
def serving(folder: Path, log_file: Path) -> Iterator[Server]:
    choose_java()
    port = free_port()
    env = {**os.environ, "STELE_DELTA_DIR": str(folder), "STELE_SQL_PORT": str(port)}
    argv = [sys.executable, "-m", "stele.placements.sql_server"]
    with log_file.open("w") as log:
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        told = (line for line in process.stdout if '"http"' in line)
        server = Server(process, msgspec.json.decode(next(told))["http"], port)
        wait_until(lambda: "starting" not in server.reason(), "the start of Spark", READY_S)
        yield server
    finally:
        process.terminate()
        process.wait(STOP_S)
        process.stdout.close()


@pytest.mark.spark
@pytest.mark.slow
def test_jdbc_client_reads_current_tables_and_cannot_write(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "delta"
    folder.mkdir()
    nodes = "SELECT cluster, node_id, node_state FROM nodes ORDER BY cluster, node_id"
    audit = "SELECT command, outcome, count(*) AS times FROM audit GROUP BY 1, 2 ORDER BY 1, 2"
    with serving(folder, tmp_path / "log") as server:
        assert server.reason().startswith("There are no tables yet")
        fill(folder, "one", 1)
        wait_until(lambda: not server.reason(), "the tables", READY_S)
        assert {row["tableName"] for row in server.ask("SHOW TABLES")} == {*SCHEMAS, *VIEWS}
        for sql in (nodes, audit):
            assert server.ask(sql) == texts(folder, sql)
        fill(folder, "two", 2)
        found = server.ask(nodes)
        assert {row["cluster"] for row in found} == {"one", "two"}
        for change in (
            "DELETE FROM nodes",
            "INSERT INTO nodes SELECT * FROM nodes",
            "DROP TABLE nodes",
        ):
            with pytest.raises(subprocess.CalledProcessError):
                server.ask(change)
        server.ask("DROP VIEW nodes")
        wait_until(lambda: "nodes" in {r["tableName"] for r in server.ask("SHOW TABLES")}, "nodes")
        assert server.ask(nodes) == found
        (jvm,) = (c for c in psutil.Process(server.process.pid).children() if c.name() == "java")
        jvm.kill()
        assert server.process.wait(STOP_S) == EXIT_INTERNAL_ERROR


def texts(folder: Path, sql: str) -> list[dict[str, str]]:
    """Return the output of ``stele sql`` as texts."""
    return [{k: str(v) for k, v in row.items()} for row in run(str(folder), sql).to_pylist()]


def test_tables_in_s3_have_the_scheme_of_the_hadoop_connector(tmp_path: Path) -> None:
    assert path_of(TableStore("s3://bucket/tables"), "nodes") == "s3a://bucket/tables/nodes"
    assert path_of(TableStore(tmp_path / "a`b"), "nodes") == f"{tmp_path}/a``b/nodes"
