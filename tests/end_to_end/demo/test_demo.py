"""The demo as a user runs it: its checks, figures and output."""

from __future__ import annotations

import pytest

from tests.end_to_end.demo.demo_run import DemoRun

pytestmark = [pytest.mark.end_to_end]

CHECKS = {
    "a node joins under load while the coordinator is killed",
    "a node leaves under load while the metadata-log is killed",
    "a node of another cluster is refused",
    "a leave below the replication factor is refused",
    "a node that has left is refused",
    "a dead node is replaced under load",
    "two nodes join as one transition",
    "a dead node is removed under load",
    "of two requests for the same ranges one waits for the other",
    "columns are added, renamed and dropped, and no request fails",
    "no acknowledged row is lost while columns change",
    "every acknowledged row is in the change log, in order",
    "a table is split while it is written",
    "a new node is given its share of the tablets",
    "a node that leaves gives its tablets away first",
    "every row of a table is read back after its tablets were split and moved",
    "no read went back behind an acknowledged write",
    "no acknowledged write is lost",
    "every file is read back with its SHA-256 through every node",
    "no write with a fenced-out version is accepted",
    "every process has the same state at the same epoch",
    "the compacted topic holds the placements of the newest epoch",
    "Spark's Delta table holds the placements of the newest epoch",
    "Spark's history table gives the placements of past epochs",
    "a replay of the whole log gives the same state",
}


def test_demo_passes_every_check(demo_run: DemoRun) -> None:
    assert demo_run.report.held
    assert {check.name for check in demo_run.report.checks} == CHECKS


def test_operations_streamed_data_while_the_load_continued(demo_run: DemoRun) -> None:
    figures = demo_run.report.figures
    assert float(figures["library_files"]) > 500
    assert float(figures["join_streamed_bytes"]) > 0
    assert float(figures["leave_streamed_bytes"]) > 0
    assert float(figures["replace_streamed_bytes"]) > 0
    assert float(figures["writes_acknowledged"]) > 100
    assert float(figures["longest_gap_s"]) < 10


def test_output_lists_steps_and_faults(demo_run: DemoRun) -> None:
    for part in (
        "kill -9 coordinator",
        "kill -9 metadata-log",
        "kill -9 n3, and nobody starts it again",
        "kill -9 n2, and nobody starts it again",
        "write_both_read_old",
        "write_both_read_new",
        "checks held",
    ):
        assert part in demo_run.output
