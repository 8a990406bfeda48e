"""Rows of a large cluster: changes are written at once, all rows later, and a view has both."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from stele.domain.image import Image
from stele.domain.ring.ranges import placement_hash
from stele.placements import derived_tables
from stele.placements.derived_tables import REWRITE_S, Derived, ForTables, Placing, Reached
from stele.placements.fold import ClusterFold
from stele.placements.queries import run, view
from stele.placements.store import Row, TableStore, range_of_row
from stele_harness.tables import current_placements, read_table
from tests.spark.checks import image_hash
from tests.spark.histories import random_log
from tests.spark.test_chain import winners


class World:
    """One cluster, its tables, and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 100.0
        self.fold = ClusterFold()
        self.epochs = winners(random_log(1))
        self.placing = self.process()

    def process(self) -> Placing:
        return Placing(Derived(TableStore(self.folder)), lambda: self.now_s)

    def take(self, count: int) -> dict[str, Reached]:
        """Write the rows of the next epochs."""
        work = ForTables(Reached(0, ""))
        for epoch in self.epochs[:count]:
            past, touched = self.fold.apply(epoch)
            rows = {name: dict(rows) for name, rows in self.fold.placements.items()}
            changes = {(n, start): rows.get(n, {}).get(start) for n, start in touched}
            work.add(ForTables(Reached(epoch.epoch, ""), rows if touched else None, past, changes))
        del self.epochs[:count]
        return self.placing.write({"c": work})

    @property
    def image(self) -> Image:
        return self.fold.image

    def live(self) -> str:
        return hash_of(run(str(self.folder), "SELECT * FROM placements_live").to_pylist())

    def held(self) -> str:
        return placement_hash(current_placements(self.folder, "c"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(derived_tables, "FEW_RANGES", 0)
    return World(tmp_path)


def hash_of(rows: list[Row]) -> str:
    ranges: dict[str, list[object]] = {}
    for row in sorted(rows, key=lambda row: (row["placement"], row["range_start"])):
        ranges.setdefault(row["placement"], []).append(range_of_row(row))
    return placement_hash(ranges)  # type: ignore[arg-type]


def test_small_cluster_writes_all_rows_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    while world.epochs:
        world.take(9)
        assert world.held() == world.live() == image_hash(world.image)
    assert read_table(tmp_path, "placements_changes", "c") == []


def test_large_cluster_writes_changes_at_once_and_all_rows_later(world: World) -> None:
    assert world.take(20)["c"].epoch == 20
    first, changed = world.held(), 0
    while len(world.epochs) > 10:
        told = world.take(7)
        assert told == {}
        assert world.live() == image_hash(world.image)
        assert world.held() == first
        changed = max(changed, len(read_table(world.folder, "placements_changes", "c")))
    assert changed > 10
    assert not world.placing.is_due()
    world.now_s += REWRITE_S
    assert world.placing.is_due()
    assert world.placing.write({})["c"].epoch == world.image.epoch
    assert world.held() == world.live() == image_hash(world.image)
    assert read_table(world.folder, "placements_changes", "c") == []


def test_changes_of_a_previous_process_stay_live_until_rewritten(
    world: World,
) -> None:
    world.take(20)
    world.take(len(world.epochs) - 5)
    assert read_table(world.folder, "placements_changes", "c")
    world.placing = world.process()
    assert world.live() == image_hash(world.image)
    rows = {name: dict(rows) for name, rows in world.fold.placements.items()}
    reached = Reached(world.image.epoch, "")
    world.placing.write({"c": ForTables(reached, rows, [])})
    assert world.held() == world.live() == image_hash(world.image)
    assert read_table(world.folder, "placements_changes", "c") == []


def test_changes_that_are_already_in_the_rows_are_harmless(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Derived, "forget_changes", lambda *_: False)
    world.take(20)
    while world.epochs:
        world.take(6)
        world.now_s += REWRITE_S / 2
        assert world.live() == image_hash(world.image)
    assert read_table(world.folder, "placements_changes", "c")


def test_duckdb_runs_the_sql_of_the_live_view(world: World) -> None:
    world.take(20)
    world.take(60)
    store, connection = TableStore(world.folder), duckdb.connect()
    for name in ("placements", "placements_changes"):
        connection.register(name, store.table(name).to_pyarrow_dataset())
    found = connection.sql(view("placements_live")).arrow()
    rows = (found if hasattr(found, "to_pylist") else found.read_all()).to_pylist()
    assert hash_of(rows) == image_hash(world.image)
