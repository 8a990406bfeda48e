"""The query's life beside the event loop: start Spark, run, restart from the tables' heads,
stop.
"""

import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from stele.placements.job import Job
from stele.runtime.logs import get_logger

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 30.0
WATCH_S: Final = 0.2
_MAX_TEXT: Final = 500
_PLAN: Final = re.compile(r"=== Streaming Query ===|\nJVM stacktrace:|\n\s+at ", re.DOTALL)
"""Start of the query and the traces in the text of a Spark exception."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_BECAUSE: Final = re.compile(r"\s*\n\s*↳\s*")
"""Separator between an error of delta-rs and its cause: a full disk is the last of three lines."""

log = get_logger(__name__)


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"


class SparkGone(Exception):
    """The JVM has ended. A new process is needed, because its gateway cannot be created again."""


class Runner:
    """One thread that owns the Spark session. Any thread may read ``phase`` and ``reason``.

    Faults of a log stop clusters and never the query. A query that fails is therefore restarted,
    with growing pauses. Without Spark the thread ends as FAILED and calls ``on_end``, because the
    process must end.
    """

    def __init__(
        self,
        make_session: Callable[[Path], SparkSession],
        make_job: Callable[[SparkSession, Path], Job],
        on_restart: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.phase = Phase.STARTING
        self.reason = "Spark is starting; try again in a moment."
        self.job: Job | None = None
        self._make_session = make_session
        self._make_job = make_job
        self._on_restart = on_restart
        self._on_end = on_end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="placements", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the query and Spark. Return False when that took too long."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="stele-spark-"))
        try:
            spark = self._make_session(scratch)
            self._supervise(spark, scratch)
            spark.stop()
        except Exception as error:  # the process ends with this error
            self.phase, self.reason = Phase.FAILED, reason_of(error)
            log.error("placements cannot continue in this process", why=self.reason)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            self._on_end()

    def _supervise(self, spark: SparkSession, scratch: Path) -> None:
        """Run queries one after the other until the stop request. Raises SparkGone."""
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            job: Job | None = None
            try:
                self.job = job = self._make_job(spark, scratch)
                job.start()
                self.phase, self.reason = Phase.RUNNING, ""
                self._watch(job)
            except Exception as error:  # errors of broker, disk or worker may be temporary
                self.reason = reason_of(error)
            progressed = bool(job is not None and job.progressed)
            self._end(job)
            if self._stop.is_set():
                break
            check_jvm(spark, self.reason)
            if progressed:
                pause_s = FIRST_PAUSE_S
            self.phase = Phase.RETRYING
            log.warning("the query failed and starts again", why=self.reason, pause_s=pause_s)
            self._on_restart()
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        self.phase, self.reason = Phase.STOPPED, "Stopping."

    def _watch(self, job: Job) -> None:
        """Tend the job until the stop request. Raises the error that ends the query before."""
        while not self._stop.wait(WATCH_S):
            job.tend()

    @staticmethod
    def _end(job: Job | None) -> None:
        try:
            if job is not None:
                job.stop()
        except Exception as error:  # it has ended anyway, and a dead JVM cannot stop it
            log.warning("the query did not stop in order", why=reason_of(error))


def check_jvm(spark: SparkSession, why: str) -> None:
    """Raise SparkGone when Spark's JVM has ended, or its context has.

    The context ends, for example, when the master removes the application. Neither is created again
    in this process.
    """
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing public tells
    ended = ""
    if process is not None and process.poll() is not None:
        ended = f"JVM ended with {process.returncode}"
    elif not _is_running(spark):  # under spark-submit the JVM is no child process, so query it
        ended = "context has ended"
    if ended:
        raise SparkGone(f"Spark's {ended}: start this process again. The last error: {why}")


def _is_running(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - nothing public tells
    except Exception:  # the JVM does not answer
        return False


def reason_of(error: BaseException) -> str:
    """Return the first sentence of an exception, without the query's plan and the traces."""
    text = _BECAUSE.sub(": ", _COLOUR.sub("", str(error) or repr(error)))
    text = _PLAN.split(text, maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if _CAUSE.match(line)), None)
    found = cause or (lines[0] if lines else repr(error))
    return found[:_MAX_TEXT]


_CAUSE: Final = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Lost|Again|Conflict|Fenced): "
)
