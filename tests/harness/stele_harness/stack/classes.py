"""Caches of the classes that the JVMs of a stack load, which later starts map into memory.

``make classes`` calls ``python -m stele_harness.stack.classes``. It starts a broker and a session of Spark
once. Each writes its classes beside its jars when it ends (class data sharing, JEP 350).

Measured on two cores: a broker is ready in 1.8 s instead of 3.9 s. It takes 2.3 s of a processor
instead of 3.9 s. A session of Spark is ready in 6 s instead of 10.5 s. With its first table it
takes 7.6 s of a processor instead of 12.6 s. Writing the caches takes half a minute, so it does not
pay for a single start.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from stele.runtime.java import (
    KAFKA,
    SILENT,
    SPARK,
    VERSION_TIMEOUT_S,
    Java,
    JavaMissing,
    Need,
    classes_of,
    find_java,
)
from stele_harness.stack.broker import BrokerCluster, BrokerFailed
from stele_harness.stack.jars import JarSet, JarsMissing, folder_of

SPARK_TIMEOUT_S: Final = 300.0
SESSION: Final = """
import sys
from pathlib import Path
from stele.placements.settings import JVM_FLAGS, spark_session

jars, scratch, *options = sys.argv[1:]
table, copy = scratch + "/table", scratch + "/copy"
quoted = " ".join(f'"{option}"' for option in options)
flags = {"spark.driver.extraJavaOptions": f'{JVM_FLAGS} "-Dderby.system.home={scratch}" {quoted}'}
session = spark_session(Path(jars), "local[1]", "1g", Path(scratch), options=flags)
session.range(10).write.format("delta").save(table)
query = session.readStream.format("delta").load(table).writeStream.format("delta")
query = query.option("checkpointLocation", scratch + "/checkpoint").trigger(availableNow=True).start(copy)
query.awaitTermination()
assert session.read.format("delta").load(copy).toPandas().shape == (10, 1)
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""
"""The work of the job at its start, without Kafka."""


def keep() -> Iterator[str]:
    """Write the missing caches.

    Yield a line for each failure; without a cache, starts are only slower.
    """
    for need, which, run in ((KAFKA, JarSet.KAFKA, _broker), (SPARK, JarSet.SPARK, _session)):
        with contextlib.suppress(JavaMissing):  # other commands report it
            java = find_java(need)
            try:
                _keep(java, folder_of(which), run)
            except (BrokerFailed, JarsMissing, OSError, subprocess.SubprocessError) as error:
                yield _refused(need, java, str(error))


def _keep(java: Java, jars: Path, run: Callable[[Java, Path, Path, tuple[str, ...]], None]) -> None:
    kept = classes_of(java, jars)
    newest = max(path.stat().st_mtime_ns for path in jars.rglob("*.jar"))
    if kept.exists() and kept.stat().st_mtime_ns > newest:
        return
    kept.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="stele-classes-", dir=jars) as name:
        made = Path(name) / kept.name
        run(java, jars, Path(name), (f"-XX:ArchiveClassesAtExit={made}", *SILENT))
        mapped = (f"-XX:SharedArchiveFile={made}", "-XX:+VerifySharedSpaces", *SILENT)
        subprocess.run(
            [java.program, *mapped, "-version"],
            cwd=name,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            check=True,  # a JVM that maps an incomplete cache crashes
        )
        made.replace(kept)


def _broker(_java: Java, _jars: Path, scratch: Path, options: tuple[str, ...]) -> None:
    cluster = BrokerCluster(scratch / "broker", java_options=options)
    try:
        cluster.start()
        cluster.wait_ready()
    finally:
        cluster.stop()


def _session(java: Java, jars: Path, scratch: Path, options: tuple[str, ...]) -> None:
    subprocess.run(
        [sys.executable, "-c", SESSION, str(jars), str(scratch), *options],
        env={**os.environ, "JAVA_HOME": str(java.home)},
        capture_output=True,
        timeout=SPARK_TIMEOUT_S,
        check=True,
    )


def _refused(need: Need, java: Java, why: str) -> str:
    return f"{need.who} will start more slowly: {java.program} kept no classes: {why}"


if __name__ == "__main__":
    for line in keep():
        print(line)
