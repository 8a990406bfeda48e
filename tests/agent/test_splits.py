"""Acks report a split as prepared only after the store has separated the rows of its tablets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.sixty_lines.store import Shelf
from stele.agent import SplitStore
from stele.agent.stores import all_resizes, resizes_of
from stele.domain.commands import CreateKeyspace, CreateTable, ResizeTable
from tests.node.world import World


class Segments(Shelf):
    """A store whose ``separated`` data is prepared. ``asked`` records the calls."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)  # type: ignore[no-untyped-call]
        self.asked = list[tuple[str, int]]()
        self.separated = set[str]()
        self.failure: Exception | None = None

    def prepare_split(self, data_id: str, tablet_count: int) -> bool:
        self.asked.append((data_id, tablet_count))
        if self.failure is not None:
            raise self.failure
        return data_id in self.separated


@pytest.fixture
def world() -> World:
    """Return a cluster with a table ``songs`` of four tablets, and ``plays`` co-located with it."""
    world = World()
    world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=4))
    world.apply(CreateTable("music.songs"))
    world.apply(CreateTable("music.plays", colocated_with="music.songs"))
    return world


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Segments]:
    store = Segments(tmp_path / "store")
    yield store
    store.db.close()


def test_split_is_prepared_once_the_rows_of_all_tables_are_separated(
    world: World, store: Segments
) -> None:
    prepared = resizes_of(store)
    assert prepared(world.image) == ()
    assert store.asked == []
    world.apply(ResizeTable("music.songs", 8), "split")
    songs, plays = world.data_id_of("music.songs"), world.data_id_of("music.plays")
    assert prepared(world.image) == ()
    assert sorted(store.asked) == sorted([(songs, 8), (plays, 8)]), "both start at once"
    store.separated = {songs}
    assert prepared(world.image) == ()
    store.separated = {songs, plays}
    assert prepared(world.image) == ("split",)


def test_merge_is_prepared_without_a_call_to_the_store(world: World, store: Segments) -> None:
    world.apply(ResizeTable("music.songs", 2), "merge")
    assert resizes_of(store)(world.image) == ("merge",)
    assert store.asked == []


def test_failing_store_is_not_prepared_and_acks_continue(world: World, store: Segments) -> None:
    world.apply(ResizeTable("music.songs", 8), "split")
    store.failure = OSError("the disk is full")
    prepared = resizes_of(store)
    assert prepared(world.image) == ()


def test_store_with_lookup_by_token_is_always_prepared(world: World, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")  # type: ignore[no-untyped-call]
    assert not isinstance(shelf, SplitStore)
    assert resizes_of(shelf) is all_resizes
    world.apply(ResizeTable("music.songs", 8), "split")
    assert all_resizes(world.image) == ("split",)
    shelf.db.close()
