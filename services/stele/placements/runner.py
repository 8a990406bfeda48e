"""The query's life beside the event loop: start Spark, run, start again from the checkpoint, stop."""

import shutil
import tempfile
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from stele.placements.failures import failure_of
from stele.placements.job import Job
from stele.runtime.logs import get_logger

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 30.0
WATCH_S: Final = 0.2

log = get_logger(__name__)


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"


class Runner:
    """One thread that owns the Spark session. ``phase`` and ``reason`` are for everybody to read."""

    def __init__(
        self,
        make_session: Callable[[Path], SparkSession],
        make_job: Callable[[SparkSession], Job],
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self.phase = Phase.STARTING
        self.reason = "Spark is starting; try again in a moment."
        self.job: Job | None = None
        self._make_session = make_session
        self._make_job = make_job
        self._on_restart = on_restart
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
            self._supervise(spark)
            spark.stop()
        except Exception as error:  # a thread's error must be seen: health turns bad
            self._fail(repr(error))
            log.exception("placements stopped")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _supervise(self, spark: SparkSession) -> None:
        """Run queries one after the other until the end is asked, or until nothing helps."""
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                self.job = self._make_job(spark)
                query = self.job.start()
                self.phase, self.reason = Phase.RUNNING, ""
                if self._watch(query):
                    pause_s = FIRST_PAUSE_S
                text = "" if self._stop.is_set() else str(query.exception())
            except (PySparkException, Py4JError, OSError) as error:
                text = str(error)
            if self._stop.is_set():
                break
            failure = failure_of(text)
            if failure.final:
                self._fail(failure.reason)
                return
            self.phase, self.reason = Phase.RETRYING, failure.reason
            log.warning("the query failed and starts again", why=failure.reason, pause_s=pause_s)
            self._on_restart()
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        self.phase, self.reason = Phase.STOPPED, "Stopping."

    def _watch(self, query: StreamingQuery) -> bool:
        """Until the query ends by itself or the end is asked; true when a batch was written."""
        while query.isActive and not self._stop.wait(WATCH_S):
            pass
        progressed = query.lastProgress is not None
        if query.isActive:
            query.stop()
        return progressed

    def _fail(self, reason: str) -> None:
        self.phase, self.reason = Phase.FAILED, reason
        log.error("placements cannot go on", why=reason)
