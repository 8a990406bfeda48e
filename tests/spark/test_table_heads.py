"""Cached heads of a table equal the table, even with other writers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from stele.placements.derived_tables import Derived, TableHeads
from stele.placements.store import TableStore, head_of_cluster
from stele.placements.summaries import SUMMARIES
from stele.placements.tables import EVENTS, existing_table, open_table
from stele.placements.upkeep import upkeep
from tests.spark.test_summaries import image_of_three

NAMES = ("a", "b", "c")


def heads_of(known: TableHeads, store: TableStore, table: str = "placements") -> dict[str, int]:
    read = known.read(table, existing_table(store, table))
    return {name: read.of(name) for name in NAMES}


def told(store: TableStore, table: str = "placements") -> dict[str, int]:
    """Return the heads as Delta stores them."""
    opened = existing_table(store, table)
    return {name: opened.transaction_version(head_of_cluster(name)) or 0 for name in NAMES}


def test_cached_heads_equal_the_table_after_any_commits(
    tmp_path: Path,
) -> None:
    chance, store = random.Random(5), TableStore(tmp_path)
    open_table(store, EVENTS)  # the upkeep needs this table
    mine, other = Derived(store), Derived(store)
    for epoch in range(1, 61):
        who = chance.choice((mine, mine, other))
        some = dict.fromkeys(chance.sample(NAMES, chance.randrange(1, 4)), epoch)
        who.write_past({name: [] for name in some}, some)
        who.write_current({name: {} for name in some}, some)
        if epoch % 20 == 10:
            upkeep(store)
        if epoch % 7 == 0:
            assert heads_of(mine._heads, store) == heads_of(other._heads, store) == told(store)
    assert heads_of(mine._heads, store) == told(store)


def test_cached_heads_are_not_read_again_after_own_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, image = TableStore(tmp_path), image_of_three()
    tables, asked = Derived(store), list[str]()
    ask = DeltaTable.transaction_version

    def counted(table: DeltaTable, name: str) -> int | None:
        asked.append(name)
        return ask(table, name)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    tables.write_current({name: {} for name in NAMES}, dict.fromkeys(NAMES, 1))
    tables.write_summaries(dict.fromkeys(NAMES, image))
    tables.write_current({name: {} for name in NAMES}, dict.fromkeys(NAMES, 2))
    for name in ("placements", *SUMMARIES):
        heads_of(tables._heads, store, name)
    assert asked == []
    assert told(store) == dict.fromkeys(NAMES, 2)


def test_heads_of_a_recreated_table_are_read_again(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    tables = Derived(store)
    tables.write_current({"a": {}}, {"a": 7})
    assert heads_of(tables._heads, store) == {"a": 7, "b": 0, "c": 0}
    shutil.rmtree(tmp_path / "placements")
    open_table(store, "placements")
    assert heads_of(tables._heads, store) == {"a": 0, "b": 0, "c": 0}
