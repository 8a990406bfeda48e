"""`stele sql` on results of any width. The queries themselves: spark/test_queries.py."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stele.cli.commands.sql import EXAMPLES
from tests.cli.conftest import Stele

ID = "01a226f2-8cf8-78d8-a6a2-0998791f2d0c"
WIDE: dict[str, Any] = {
    "request_id": ID,
    "finished_at": datetime(2026, 11, 29, 10, 0, 0, 123456, tzinfo=UTC),
    "ran_s": 1.23456,
    "reason": "x" * 50,
    "actor": "ada",
}


class Answer:
    """A result of the given rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_pylist(self) -> list[dict[str, Any]]:
        return self.rows


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the list of rows that each query returns, on a terminal of 80 columns."""
    found = list[dict[str, Any]]()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("stele.placements.queries.run", lambda *_: Answer(found))
    return found


def test_wide_result_shows_the_columns_that_fit_and_names_the_rest(
    stele: Stele, rows: list[dict[str, Any]]
) -> None:
    rows += [WIDE] * 6
    lines = stele("sql", "SELECT 1").out.splitlines()
    assert lines[0].split() == ["request_id", "finished_at", "ran_s", "actor"]
    local = WIDE["finished_at"].astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert lines[1].split() == ["01a226f2-8cf8", *local.split(), "1.235", "ada"]
    assert lines[-1] == "1 column more: reason. --wide shows all."
    assert max(map(len, lines)) <= 80


def test_few_wide_rows_are_printed_with_one_line_per_column(
    stele: Stele, rows: list[dict[str, Any]]
) -> None:
    rows.append(WIDE)
    lines = stele("sql", "SELECT 1").out.splitlines()
    assert [line.split()[0] for line in lines] == [*WIDE]
    assert stele("sql", "SELECT 1", "--vertical").out.splitlines() == lines


def test_wide_and_csv_output_have_all_columns_and_full_ids(
    stele: Stele, rows: list[dict[str, Any]]
) -> None:
    rows += [WIDE] * 2
    wide = stele("sql", "SELECT 1", "--wide").out.splitlines()
    assert len(wide) == 3 and ID in wide[1] and "x" * 50 in wide[1]
    csv = stele("sql", "SELECT 1", "--csv").out.splitlines()
    assert csv[0] == ",".join(WIDE) and csv[1].startswith(f"{ID},")
    assert stele("sql", "SELECT 1", "-o", "csv").out.splitlines() == csv


def test_examples_are_listed_and_run_by_name(stele: Stele, rows: list[dict[str, Any]]) -> None:
    rows.append({"times": 3})
    assert all(name in stele("sql", "--examples").out for name in EXAMPLES)
    assert stele("sql", "--example", "refusals").out.split() == ["times", "3"]
    assert "longest-operations" in stele.exits(2, "sql", "--example", "nope").err
