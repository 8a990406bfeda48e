"""A disk that is full while the job runs: it says so, tries on, and goes on by itself once there is room."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.polling import wait_until
from tests.spark.checks import assert_materialized
from tests.spark.conftest import Append
from tests.spark.histories import images, random_log
from tests.spark.test_job import BATCH_S, Borrowed, make_job, make_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]
DISK_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
COMMAND_S = 10.0
LEFT_BYTES = (0, 12 * 1024, 64 * 1024)
"""With none no batch begins; with some a commit fails between others that were made."""


class Disk:
    """A file system of its own, which can be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, left: int) -> None:
        """A job may write meanwhile, so what is free is found by trying."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(CHUNK_BYTES))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
            file.truncate(file.tell() - left)

    def empty(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        pytest.skip("A disk that can be filled takes mount, which is not here")
    if done.returncode:
        pytest.skip(f"A disk that can be filled takes a mount as root: {done.stderr.strip()}")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], timeout=COMMAND_S, check=True)


def test_a_full_disk_is_named_and_the_job_goes_on_by_itself_once_there_is_room(
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
