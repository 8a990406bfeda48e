"""The progress table: lag of a job between the end of the topic and the tables."""

from __future__ import annotations

from pathlib import Path

from stele.placements.progress import STILL_S, WRITE_S, ProgressTable, row_of
from stele.placements.store import TableStore
from stele_harness.tables import read_table


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def told(folder: Path, cluster: str = "c") -> dict[str, object]:
    (row,) = read_table(folder, "progress", cluster)
    return row


def test_row_has_the_lag_of_topic_and_tables() -> None:
    row = row_of("c", end=50, next_offset=40, judged=30, published=29, tables=25)
    assert (row["records_behind"], row["published_behind"], row["tables_behind"]) == (10, 1, 5)
    # the end of the topic was read before the last batch was judged
    assert row_of("c", 39, 40, 30, 30, 30)["records_behind"] == 0
    new = row_of("c", 50, 40, 30, None, None)
    assert (new["published_behind"], new["tables_behind"]) == (None, None)


def test_row_is_written_on_change_and_at_intervals(tmp_path: Path) -> None:
    clock = Clock()
    progress = ProgressTable(TableStore(tmp_path), clock)
    first = {"c": row_of("c", 50, 40, 30, 30, 30)}
    assert progress.is_due()
    assert progress.write(first)
    assert not progress.is_due()
    clock.now_s += WRITE_S
    assert progress.is_due()
    assert not progress.write(first)
    looked_at = told(tmp_path)["looked_at"]
    assert progress.write({"c": row_of("c", 60, 60, 35, 35, 35)})
    assert told(tmp_path)["judged_epoch"] == 35
    clock.now_s += STILL_S
    assert progress.write({"c": row_of("c", 60, 60, 35, 35, 35)})
    assert str(told(tmp_path)["looked_at"]) > str(looked_at)


def test_jobs_that_share_tables_replace_only_their_clusters(tmp_path: Path) -> None:
    for cluster, end in (("c", 10), ("d", 20), ("c", 30)):
        assert ProgressTable(TableStore(tmp_path)).write(
            {cluster: row_of(cluster, end, 0, 0, 0, 0)}
        )
    assert [told(tmp_path, name)["topic_end"] for name in ("c", "d")] == [30, 20]
