"""Kills of the job, its JVM and its Python workers, in any order: the tables equal a plain replay, row by row.

`STELE_TEST_KILLS` sets their number, `STELE_TEST_KILLS_S` a time instead: ten minutes in `make test-all`.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from stele_harness.tables import read_table
from tests.polling import wait_until
from tests.spark.checks import assert_materialized, differences
from tests.spark.conftest import Append
from tests.spark.descendants import below, is_jvm, is_worker, kill
from tests.spark.histories import images, random_log
from tests.spark.reported import held, moved, told
from tests.spark.test_service import READY_S, position, running

FOR_S = float(os.environ.get("STELE_TEST_KILLS_S", "0"))
KILLS = int(FOR_S / 4) if FOR_S else int(os.environ.get("STELE_TEST_KILLS", "3"))
"""The maximum, since a process takes some seconds to restart. Each kind occurs once in three."""
LIMIT_S = FOR_S + 600 if FOR_S else 300 + 200 * KILLS
pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S),
]


def job(process: subprocess.Popen[str]) -> None:
    process.kill()


def jvm(process: subprocess.Popen[str]) -> None:
    kill(below(process.pid, is_jvm))


def workers(process: subprocess.Popen[str]) -> None:
    kill(below(process.pid, is_worker))


def test_tables_and_topic_equal_a_replay_after_any_kills(
    kafka: str, topics: str, append: Append, folder: Path
) -> None:
    chance = random.Random(KILLS)
    log = random_log(2, contended=60 + 2 * KILLS)
    cuts = sorted(chance.sample(range(1, len(log)), KILLS))
    kinds = [kind for _ in range(0, KILLS, 3) for kind in chance.sample((jvm, job, workers), 3)]
    reports, sent, reported, killed = told(log, 2), 0, 0, list[str]()
    began_s = time.monotonic()
    with ExitStack() as stack:
        process, url = stack.enter_context(running(kafka, topics, folder))
        for cut, hit in zip(cuts, kinds, strict=False):
            if FOR_S and time.monotonic() - began_s > FOR_S:
                break
            append(topics, log[sent:cut])
            until = len(reports) * cut // len(log)
            append(topics, reports[reported:until], "reports")
            sent, reported = cut, until
            reach(url, chance.randrange(len(images(log[:cut]))))
            hit(process)
            killed.append(hit.__name__)
            if hit is not workers:
                process.wait(READY_S)
                process, url = stack.enter_context(running(kafka, topics, folder))
        append(topics, log[sent:])
        append(topics, reports[reported:], "reports")
        reach(url, images(log)[-1].epoch)
        delta, expected = folder / "delta", moved(log, reports)
        wait_until(
            lambda: held(read_table(delta, "movements", topics)) == expected,
            "all that moved",
            READY_S,
        )
        wait_until(lambda: not differences(delta, topics, log), "the tables of a replay", READY_S)
    took_s = time.monotonic() - began_s
    print(
        f"{len(killed)} kills in {took_s:.0f} s, {dict(Counter(killed))}: {images(log)[-1].epoch} epochs of "
        f"{len(log)} records, {len(reports)} reports, {len(expected)} movements"
    )
    assert_materialized(kafka, folder / "delta", topics, log)


def reach(url: str, epoch: int) -> None:
    wait_until(lambda: int(str(position(url)["epoch"])) >= epoch, f"epoch {epoch}", READY_S)
