"""A job that dies at any of its commits leaves tables from which the next one continues exactly."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from stele.log.brokers import Brokers
from stele.placements import derived_tables, tables
from stele.placements.derive import Deriver
from stele.placements.derived_tables import Placing
from stele.placements.events import NewRows
from stele.placements.events_table import Events
from stele.placements.store import TableStore
from stele.placements.tables import PROGRESS, REPORTS, SCHEMAS
from stele.placements.topic import Publishing
from stele_harness.tables import read_table
from tests.spark.checks import differences
from tests.spark.filled import fill
from tests.spark.histories import random_log
from tests.spark.test_chain import arrow, rows_of
from tests.spark.test_publishing import FakeWriters, NoWriters

LOG = random_log(1)
CUTS = (25, 60, len(LOG))
TRIED = None if os.environ.get("STELE_HUNT") else 4
"""Number of random commits at which a job is killed. None means each of them."""
DERIVED = [name for name in SCHEMAS if name not in (PROGRESS, REPORTS, "movements", "events")]


class Killed(BaseException):
    """Like SIGKILL: no code of the process catches it."""


class Job:
    """The work of a job on its batches in order, without Spark and brokers."""

    def __init__(self, store: TableStore, writers: FakeWriters) -> None:
        self.events = Events(store)
        self.deriver = Deriver(Brokers(""), store, self.events, _unexpected, lambda *_: None)
        self.deriver._publishing = Publishing(writers, _unexpected)
        self.deriver._publishing_schema = Publishing(NoWriters(), _unexpected)
        self.placing = Placing(self.deriver._derived)
        self._derive({cluster: NewRows() for cluster in self.events.heads})

    def batch(self, log: tuple[bytes, ...]) -> None:
        new: dict[str, NewRows] = {}
        judged = rows_of(self.events.heads, arrow(log), certain={"c": len(LOG)})
        assert self.events.commit(judged, new)
        self._derive(new)

    def _derive(self, new: dict[str, NewRows]) -> None:
        deriver = self.deriver
        unknown = [cluster for cluster in new if cluster not in deriver._folds]
        loaded = deriver._derived.load(unknown) if unknown else None
        for cluster in new:
            deriver._advance(cluster, [new], loaded)
        work, deriver._for_tables = deriver._for_tables, {}
        self.placing.write(work)
        deriver.write_summaries()
        assert not deriver.summaries_stopped


def _unexpected(*why: object) -> None:
    raise AssertionError(why)


class Executioner:
    """Kills before or after the commit with a number, counted from 0."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at: int | None = None
        self.is_made = False
        for module in (derived_tables, tables):
            patch.setattr(module, "write_deltalake", self._around(deltalake.write_deltalake))
        patch.setattr(deltalake.DeltaTable, "delete", self._around(deltalake.DeltaTable.delete))

    def _around(self, write: Callable[..., object]) -> Callable[..., object]:
        def killed(*arguments: object, **more: object) -> object:
            number, self.count = self.count, self.count + 1
            if number == self.at and not self.is_made:
                raise Killed
            found = write(*arguments, **more)
            if number == self.at:
                raise Killed
            return found

        return killed


def live(folder: Path, writers: FakeWriters) -> None:
    """Run a job from the state of the tables to the end of the log."""
    job = Job(TableStore(folder), writers)
    for cut in CUTS:
        job.batch(LOG[:cut])


@pytest.mark.slow
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("is_made", [False, True])
def test_job_killed_at_any_commit_is_continued_exactly(
    is_made: bool, is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr(derived_tables, "FEW_RANGES", 0)
        monkeypatch.setattr(derived_tables, "REWRITE_S", 0.0)
    fill(tmp_path / "plain", "c", 1)
    executioner = Executioner(monkeypatch)
    live(tmp_path / "whole", FakeWriters())
    commits = range(executioner.count)
    assert len(commits) > len(DERIVED)
    for number in random.Random(7).sample(commits, TRIED or len(commits)):
        folder, writers = tmp_path / str(number), FakeWriters()
        executioner.count, executioner.at, executioner.is_made = 0, number, is_made
        with pytest.raises(Killed):
            live(folder, writers)
        executioner.at = None
        writers.forget("c")
        live(folder, writers)
        for name in DERIVED:
            assert rows(folder, name) == rows(tmp_path / "plain", name), (number, name)
        assert differences(folder, "c", LOG) == [], number
        assert epochs(folder) == epochs(tmp_path / "plain"), number


def rows(folder: Path, name: str) -> list[str]:
    """Return the rows without their epochs, which depend on the time of the kill."""
    found = read_table(folder, name, "c")
    if name == "balance":  # the table has a row for each possible time of a change
        newest = max(int(row["as_of_epoch"]) for row in found)
        found = [row for row in found if row["as_of_epoch"] == newest]
    for row in found:
        row.pop("as_of_epoch", None)
    return sorted(map(str, found))


def epochs(folder: Path) -> list[tuple[object, ...]]:
    found = read_table(folder, "events", "c")
    return sorted(
        (row["epoch"], row["fact_number"] or 0, row["state_id"], str(row["fact_json"]))
        for row in found
        if row["row_kind"] in ("epoch", "fact")
    )
