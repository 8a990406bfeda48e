"""A disk that fills up while the job runs: the job reports it, retries, and continues once there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.disk import Disk
from tests.polling import wait_until
from tests.spark.checks import assert_materialized
from tests.spark.conftest import Append
from tests.spark.histories import images, random_log
from tests.spark.test_job import BATCH_S, make_job, make_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]
LEFT_BYTES = (0, 12 * 1024, 64 * 1024)
"""Without space no batch begins. With little space a commit fails between successful ones."""


class Borrowed:
    """The session of the tests, which outlives the runner."""

    def __init__(self, spark: SparkSession) -> None:
        self.sparkContext = spark.sparkContext

    def stop(self) -> None:
        pass


def test_job_reports_a_full_disk_and_continues_once_there_is_space(
    spark: SparkSession, kafka: str, topics: str, append: Append, disk: Disk
) -> None:
    from stele.placements.runner import Phase, Runner

    log, folder = random_log(3)[:100], disk.path / "placements"
    options = make_options(kafka, topics, folder)
    reasons: list[str] = []
    runner = Runner(
        lambda _: Borrowed(spark),
        lambda *_: make_job(spark, options, folder),
        lambda: reasons.append(runner.reason),
    )

    def epoch() -> int:
        found = runner.job.reached.get(topics) if runner.job else None
        return found.epoch if found else 0

    def reaches(end: int) -> None:
        expected = images(log[:end])[-1].epoch
        wait_until(lambda: epoch() == expected, f"the tables at epoch {expected}", BATCH_S)

    append(topics, log[:40])
    runner.start()
    try:
        reaches(40)
        for end, left in zip((60, 80, 100), LEFT_BYTES, strict=True):
            reasons.clear()
            disk.fill(left)
            append(topics, log[end - 20 : end])
            wait_until(lambda: reasons, f"a restart with {left} bytes left", BATCH_S)
            assert all("No space left on device" in reason for reason in reasons), reasons
            disk.empty()
            reaches(end)
        wait_until(lambda: runner.phase is Phase.RUNNING, "the query to run on", BATCH_S)
    finally:
        assert runner.stop(30)
    assert_materialized(kafka, folder / "delta", topics, log)
