from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.node.store import SqliteStore
from tests.node.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()
