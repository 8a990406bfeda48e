"""The query's life beside the event loop: start Spark, run, start again where the tables stand, stop."""

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
"""Where the text of an exception of Spark's begins to quote the query and its traces."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_BECAUSE: Final = re.compile(r"\s*\n\s*↳\s*")
"""Between an error of delta-rs and what it comes from: a full disk is the last of three lines."""

log = get_logger(__name__)


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"


class SparkGone(Exception):
    """The JVM has ended. A new process is needed: the gateway to it cannot be made again."""


class Runner:
    """One thread that owns the Spark session. ``phase`` and ``reason`` are for everybody to read.

    What the log itself has wrong stops clusters, and never the query. So a query that fails is started
    again, with growing pauses; without Spark the thread ends FAILED and calls ``on_end``: the process must go.
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
        """Stop the query and Spark; false when that was not done in time."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="stele-spark-"))
        try:
            spark = self._make_session(scratch)
            self._supervise(spark, scratch)
            spark.stop()
        except Exception as error:  # a thread's error must be seen: the process leaves with it
            self.phase, self.reason = Phase.FAILED, reason_of(error)
            log.error("placements cannot go on in this process", why=self.reason)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            self._on_end()

    def _supervise(self, spark: SparkSession, scratch: Path) -> None:
        """Run queries one after the other until the end is asked. Raises SparkGone."""
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            job: Job | None = None
            try:
                self.job = job = self._make_job(spark, scratch)
                job.start()
                self.phase, self.reason = Phase.RUNNING, ""
                self._watch(job)
            except Exception as error:  # the broker, the disk, a worker: all of it may pass
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
        """Until the end is asked. Raises what ends the query before."""
        while not self._stop.wait(WATCH_S):
            job.tend()

    @staticmethod
    def _end(job: Job | None) -> None:
        try:
            if job is not None:
                job.stop()
        except Exception as error:  # it is over anyway; a dead JVM cannot be told to stop
            log.warning("the query did not stop in order", why=reason_of(error))


def check_jvm(spark: SparkSession, why: str) -> None:
    """Raises SparkGone when Spark's JVM is not there any more, or its context has ended there: when the master
    has taken the application away, say. Neither is made again in this process.
    """
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing public tells
    ended = ""
    if process is not None and process.poll() is not None:
        ended = f"JVM ended with {process.returncode}"
    elif not _is_running(spark):  # below spark-submit the JVM is no child of ours, so it is asked
        ended = "context has ended"
    if ended:
        raise SparkGone(f"Spark's {ended}: start this process again. The last error: {why}")


def _is_running(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - nothing public tells
    except Exception:  # nobody answers there
        return False


def reason_of(error: BaseException) -> str:
    """The first sentence of what an exception says, without the query's plan and the traces."""
    text = _BECAUSE.sub(": ", _COLOUR.sub("", str(error) or repr(error)))
    text = _PLAN.split(text, maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if _CAUSE.match(line)), None)
    found = cause or (lines[0] if lines else repr(error))
    return found[:_MAX_TEXT]


_CAUSE: Final = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Lost|Again|Conflict|Fenced): "
)
