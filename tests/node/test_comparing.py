"""Comparison of two replicas by digests: differing rows are found, and few other rows are moved."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.agent.stores import Span
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.node import digests
from stele.node.cells import StoredCell
from stele.node.digests import (
    FANOUT,
    LEAF_ROWS,
    Digest,
    NextStep,
    SourceGone,
    differing,
    digest_in,
    digest_of,
    judged,
)
from stele.node.store import SqliteStore, connect

DATA = "d"
WHOLE = Span(DATA, MIN_TOKEN, MIN_TOKEN)
Rows = dict[int, tuple[int, bool, bytes]]
"""By token: timestamp, tombstone and value. The key is the token as text."""

tokens = st.integers(MIN_TOKEN + 1, MAX_TOKEN)
spans = st.tuples(tokens, tokens).filter(lambda pair: pair[0] < pair[1])
cells = st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from([b"", b"x", b"yy"]))
stores = st.dictionaries(st.one_of(st.integers(-40, 40), tokens), cells, max_size=80)


def rows_in(rows: Rows, span: Span) -> list[tuple[int, bytes, int, bool, bytes]]:
    _, start, end = span.bounds()
    return [(t, str(t).encode(), *rows[t]) for t in rows if start < t <= end]


def found_by(mine: Rows, theirs: Rows, most: int = 1000) -> tuple[list[Span], list[Digest]]:
    """Return the spans to pull and the equal digests. Each call compares at most ``most`` spans."""
    equal = list[Digest]()

    async def ours(asked: Sequence[Span]) -> list[Digest | None]:
        return [digest_of(rows_in(mine, span)) for span in asked[: most + 1]]

    async def others(asked: Sequence[Span]) -> list[Digest | None]:
        return [digest_of(rows_in(theirs, span)) for span in asked[:most]]

    async def all_of() -> list[Span]:
        found = differing([WHOLE], ours, others, equal.append)
        return [span async for some in found for span in some]

    return asyncio.run(all_of()), equal


@given(spans, st.integers(1, 40))
def test_split_parts_cover_the_span_exactly(pair: tuple[int, int], parts: int) -> None:
    span = Span(DATA, *pair)
    found = span.split(parts)
    assert [found[0].start, found[-1].end] == [span.start, span.end]
    assert all(one.end == two.start for one, two in pairwise(found))
    assert all(part.start < part.end for part in found)
    assert len(found) == min(parts, span.end - span.start)


def test_span_up_to_the_end_of_the_ring_is_split_up_to_it() -> None:
    found = Span(DATA, 0, MIN_TOKEN).split(4)
    assert len(found) == 4 and found[-1].end == MIN_TOKEN
    assert found[-1].bounds()[2] == MAX_TOKEN


@settings(deadline=None)
@given(stores, stores, st.integers(1, 20))
def test_spans_to_pull_contain_every_row_that_is_missing_locally(
    mine: Rows, theirs: Rows, most: int
) -> None:
    pulled, equal = found_by(mine, theirs, most)
    lacking = {row for row in rows_in(theirs, WHOLE) if row not in rows_in(mine, WHOLE)}
    come = [row for span in pulled for row in rows_in(theirs, span)]
    assert lacking <= {*come}
    assert len({*come}) == len(come), "no row comes twice"
    assert sum(digest.keys for digest in equal) + len(come) <= len(theirs)


@settings(deadline=None)
@given(st.sets(tokens, min_size=200, max_size=400), st.data())
def test_one_differing_row_moves_at_most_one_leaf(there: set[int], data: st.DataObject) -> None:
    theirs: Rows = dict.fromkeys(there, (5, False, b"v"))
    changed = data.draw(st.sampled_from(sorted(there)))
    mine = {**theirs, changed: (4, False, b"old")}
    pulled, equal = found_by(mine, theirs)
    come = [row for span in pulled for row in rows_in(theirs, span)]
    assert [row[0] for row in come if row[0] == changed] == [changed]
    assert len(come) <= LEAF_ROWS
    assert sum(digest.keys for digest in equal) == len(theirs) - len(come)


def test_equal_replicas_exchange_no_rows() -> None:
    rows: Rows = dict.fromkeys(range(1000), (5, False, b"v"))
    assert found_by(rows, rows)[0] == []
    assert found_by(rows, {})[0] == [], "what the other has not it cannot give"
    assert found_by({}, rows)[0] == [WHOLE], "there is nothing to compare"


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (Digest(3, 30, b"a"), Digest(3, 30, b"a"), NextStep.NOTHING),
        (Digest(3, 30, b"a"), Digest(0, 0, b"0"), NextStep.NOTHING),
        (None, Digest(0, 0, b"0"), NextStep.NOTHING),
        (Digest(3, 30, b"a"), Digest(3, 30, b"b"), NextStep.PULL),
        (Digest(0, 0, b"0"), None, NextStep.PULL),
        (Digest(LEAF_ROWS + 1, 30, b"a"), Digest(3, 30, b"b"), NextStep.SPLIT),
        (Digest(3, 30, b"a"), Digest(LEAF_ROWS + 1, 30, b"b"), NextStep.SPLIT),
        (Digest(3, 30, b"a"), None, NextStep.SPLIT),
        (None, Digest(3, 30, b"a"), NextStep.SPLIT),
        (None, None, NextStep.SPLIT),
    ],
)
def test_span_is_skipped_pulled_or_split_by_its_digests(
    mine: Digest | None, theirs: Digest | None, expected: NextStep
) -> None:
    assert judged(Span(DATA, 0, FANOUT), mine, theirs) is expected
    if expected is NextStep.SPLIT:
        assert judged(Span(DATA, 0, 1), mine, theirs) is NextStep.PULL, "it cannot be split"


async def test_comparison_fails_if_the_source_sends_no_digests() -> None:
    async def nothing(asked: Sequence[Span]) -> None:
        return None

    async def empty(asked: Sequence[Span]) -> list[Digest | None]:
        return [Digest(0, 0, bytes(16)) for _ in asked]

    with pytest.raises(SourceGone):
        _ = [some async for some in differing([WHOLE], empty, nothing, lambda _: None)]


ROW = (7, b"key", 5, False, b"value")


@given(st.permutations([(token, b"k", token, False, b"v") for token in range(6)]))
def test_a_digest_does_not_depend_on_the_order_of_rows(
    rows: list[tuple[int, bytes, int, bool, bytes]],
) -> None:
    assert digest_of(rows) == digest_of(sorted(rows))


@pytest.mark.parametrize(
    "other",
    [
        (8, b"key", 5, False, b"value"),
        (7, b"kez", 5, False, b"value"),
        (7, b"key", 6, False, b"value"),
        (7, b"key", 5, True, b"value"),
        (7, b"key", 5, False, b"valuf"),
        (7, b"keyv", 5, False, b"alue"),
    ],
)
def test_digest_depends_on_each_field_of_a_row(
    other: tuple[int, bytes, int, bool, bytes],
) -> None:
    assert digest_of([ROW]).sum != digest_of([other]).sum


@pytest.fixture
def store(tmp_path: Path) -> sqlite3.Connection:
    return connect(tmp_path / "store.sqlite")


def fill(store: sqlite3.Connection, tokens: range, value: bytes = b"v") -> None:
    rows = [(DATA, t, b"k", 5, 0, 1 + len(value), value) for t in tokens]
    store.executemany("insert into cells values (?, ?, ?, ?, ?, ?, ?)", rows)


def test_span_above_the_limits_has_no_digest(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MOST_ROWS", 10)
    monkeypatch.setattr(digests, "MOST_BYTES", 100)
    fill(store, range(1, 12))
    assert digest_in(store, Span(DATA, 0, 11)) is None
    assert digest_in(store, Span(DATA, 0, 10)) == digest_of(
        [(t, b"k", 5, False, b"v") for t in range(1, 11)]
    )
    fill(store, range(20, 22), b"v" * 99)
    assert digest_in(store, Span(DATA, 19, 21)) is None
    alone = digest_in(store, Span(DATA, 19, 20))
    assert alone is not None and alone.keys == 1, "a single row cannot be split"


async def test_answer_with_digests_ends_at_the_row_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.store.CALL_ROWS", 2)
    store = SqliteStore(tmp_path / "store.sqlite")
    try:
        await store.write([StoredCell(DATA, token, b"k", 1, False, b"v") for token in range(10)])
        found = await store.digests([Span(DATA, token - 1, token) for token in range(10)])
        assert [digest.keys for digest in found if digest] == [1, 1, 1]
        assert found[0] == digest_of([(0, b"k", 1, False, b"v")])
    finally:
        await store.close()
