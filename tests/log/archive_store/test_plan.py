"""Files to copy into a store, unneeded files, and the files of the history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.log.archive.container import EpochSpan
from stele.log.archive_store import layout
from stele.log.archive_store.layout import (
    PastLogs,
    StoredSegment,
    StoredSnapshot,
    contents_of,
    history,
    own_shots,
    spans,
)
from stele.log.blobs.port import Blob
from tests.log.archive_store.made import small_blocks

OLD, NEW = "01" * 16, "02" * 16
STATE = "ab" * 16


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def piece(first: int, last: int, log_id: str = NEW) -> StoredSegment:
    return StoredSegment(log_id, first, last, STATE)


def shot(epoch: int, log_id: str = NEW) -> StoredSnapshot:
    return StoredSnapshot(log_id, epoch, STATE)


@pytest.mark.parametrize(
    ("own", "there", "first", "lacks"),
    [
        ([], [], 1, []),
        ([(1, 40)], [], 1, [(1, 16), (17, 32), (33, 40)]),
        ([(1, 40)], [(1, 32)], 1, [(33, 40)]),
        ([(1, 40)], [(1, 32), (33, 38)], 1, [(33, 40)]),
        ([(1, 40)], [(1, 10), (9, 40)], 1, []),
        ([(1, 40)], [], 20, [(20, 32), (33, 40)]),
        ([(1, 40)], [], 41, []),
        ([(5, 16), (30, 34)], [], 1, [(5, 16), (30, 32), (33, 34)]),
        ([(1, 16)], [(1, 100)], 1, []),
    ],
)
def test_incomplete_blocks_are_lacking(
    own: list[tuple[int, int]],
    there: list[tuple[int, int]],
    first: int,
    lacks: list[tuple[int, int]],
) -> None:
    found = layout.lacking((EpochSpan(*s) for s in own), (EpochSpan(*s) for s in there), first)
    assert found == lacks


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30)), max_size=6), st.integers(1, 70))
def test_lacking_and_stored_spans_cover_all_epochs(drawn: list[tuple[int, int]], last: int) -> None:
    there = [EpochSpan(first, first + more) for first, more in drawn]
    lacks = layout.lacking([EpochSpan(1, last)], there)
    found = {e for first, end in [*lacks, *there] for e in range(first, end + 1)}
    assert {*range(1, last + 1)} <= found
    assert layout.lacking([EpochSpan(1, last)], [*there, *lacks]) == []


def test_segment_is_covered_by_a_longer_segment_of_its_log() -> None:
    longer, own, part, begins, other = (
        piece(1, 16),
        piece(17, 30),
        piece(17, 20),
        piece(5, 16),
        piece(1, 9, OLD),
    )
    assert layout.covered([other, part, longer, begins, own]) == {part: own, begins: longer}
    assert layout.covered([piece(1, 16), StoredSegment(NEW, 1, 16, "cd" * 16)]) == {}


def test_segments_that_a_kept_snapshot_needs_do_not_expire() -> None:
    pieces = [piece(1, 16), piece(17, 32), piece(33, 48)]
    shots = [shot(20), shot(32), shot(40)]
    blobs = [Blob(p.name, 1) for p in pieces]
    blobs += [Blob(name, 1) for s in shots for name in (s.name, s.decided_name)]
    contents = contents_of(blobs)
    assert layout.base_of(contents.shots, 20) == 0
    assert layout.expired(contents, layout.base_of(contents.shots, 20)) == []
    assert layout.base_of(contents.shots, 39) == 32
    assert layout.expired(contents, 32) == [pieces[0].name, shots[0].name, shots[0].decided_name]
    assert layout.expired(contents, 33)[:2] == [pieces[0].name, pieces[1].name]


def test_unknown_names_and_half_snapshots_are_ignored() -> None:
    found = contents_of(
        [
            Blob(piece(1, 2).name, 7),
            Blob(shot(2).name, 8),
            Blob("stele.json", 1),
            Blob(f"logs/{NEW}/segments/1-2.avro", 1),
        ]
    )
    assert found.pieces == (piece(1, 2),)
    assert found.shots == ()
    assert len(found.sizes) == 4
    both = contents_of([Blob(shot(2).name, 8), Blob(shot(2).decided_name, 8)])
    assert both.shots == (shot(2),)
    assert both.logs == [NEW]


def test_each_epoch_is_read_once() -> None:
    found = history([piece(17, 40), piece(1, 16), piece(1, 9), piece(30, 50), piece(60, 70)])
    assert [(p.first, p.last) for p in found] == [(1, 16), (17, 40), (41, 50), (60, 70)]
    assert spans(found) == [(1, 50), (60, 70)]
    assert history([]) == []


def test_epochs_given_up_by_a_recovery_are_not_read() -> None:
    pieces = [piece(1, 16, OLD), piece(17, 32, OLD), piece(33, 48, OLD), piece(17, 24, NEW)]
    found = history(pieces)
    assert [(p.piece, p.first, p.last) for p in found] == [(pieces[0], 1, 16), (pieces[3], 17, 24)]
    blobs = [Blob(p.name, 1) for p in pieces]
    shots = [shot(10, OLD), shot(20, OLD), shot(24, NEW)]
    blobs += [Blob(name, 1) for s in shots for name in (s.name, s.decided_name)]
    assert own_shots(contents_of(blobs)) == ([shots[0], shots[2]], [shots[1]])


def test_recovered_log_continues_in_the_middle_of_an_old_segment() -> None:
    found = history([piece(1, 16, OLD), piece(11, 20, NEW)])
    assert [(p.first, p.last) for p in found] == [(1, 10), (11, 20)]


def test_past_logs_limit_the_epochs_of_older_logs() -> None:
    """Its own first epochs may not be there yet, and another log in between was given up as a whole."""
    between = "01" * 15 + "77"
    pieces = [piece(1, 70, OLD), piece(1, 60, between), piece(91, 95)]
    shots = [shot(30, OLD), shot(41, OLD), shot(55, between), shot(92)]
    blobs = [Blob(name, 1) for each in shots for name in each.names]
    blobs += [Blob(each.name, 1) for each in pieces]
    past = PastLogs(NEW, {OLD: 40})
    found = history(pieces, past)
    assert [(part.piece.log_id, part.first, part.last) for part in found] == [
        (OLD, 1, 40),
        (NEW, 91, 95),
    ]
    assert own_shots(contents_of(blobs), past) == ([shots[0], shots[3]], [])
