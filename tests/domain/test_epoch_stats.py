"""Counts of a log: those of slices add up to those of the whole."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stele.domain import epoch_stats
from stele.domain.epoch_stats import CountedWinner, Counting, EpochCount, EpochStats, Large, merged

NAMES = st.sampled_from(["join", "noop", "advance"])


@st.composite
def logs(draw: st.DrawFn) -> list[CountedWinner]:
    found, offset = list[CountedWinner](), draw(st.integers(0, 9))
    for epoch in range(1, 1 + draw(st.integers(0, 40))):
        beside = draw(st.integers(0, 2))
        offset += 1 + beside
        at_ms, size = draw(st.integers(0, 400_000)), draw(st.integers(90, 300))
        found.append(CountedWinner(epoch, offset, at_ms, size, draw(NAMES), draw(NAMES), beside))
    return found


def counted(winners: list[CountedWinner]) -> EpochStats:
    counting = Counting()
    for winner in winners:
        counting.add(winner)
    return counting.stats()


@given(log=logs(), cuts=st.lists(st.integers(0, 40), max_size=3))
def test_counts_of_slices_add_up(log: list[CountedWinner], cuts: list[int]) -> None:
    whole, sliced, begin = counted(log), EpochStats(), 0
    for end in (*sorted(cuts), len(log)):
        sliced = merged(sliced, counted(log[begin:end]))
        begin = max(begin, end)
    assert sliced == whole
    assert whole.total == EpochCount(len(log), sum(winner.size_bytes for winner in log))
    assert sum(whole.minutes.values()) == sum(whole.sizes.values()) == len(log)
    assert sum(whole.actors.values(), EpochCount()) == whole.total
    assert msgspec.json.decode(msgspec.json.encode(whole), type=EpochStats) == whole


def test_stats_count_commands_actors_sizes_and_times() -> None:
    first = CountedWinner(7, 11, 60_001, 200, "join", "ada", 2)
    found = counted(
        [first, first._replace(epoch=8, offset=12, at_ms=120_000, size_bytes=300, beside=0)]
    )
    assert found == EpochStats(
        first=7,
        last=8,
        first_offset=11,
        last_offset=12,
        first_at_ms=60_001,
        last_at_ms=120_000,
        total=EpochCount(2, 500),
        beside=2,
        commands={"join": EpochCount(2, 500)},
        actors={"ada": EpochCount(2, 500)},
        minutes={1: 1, 2: 1},
        sizes={8: 1, 9: 1},
        largest=(Large(8, 12, 300, "join", "ada"), Large(7, 11, 200, "join", "ada")),
    )


def test_rare_names_are_counted_as_others() -> None:
    """An answer stays small, however many actors there are."""
    most = epoch_stats.MOST_NAMES
    found = counted([CountedWinner(n, n, 0, 100, "noop", f"a{n}") for n in range(1, most + 6)])
    assert len(found.actors) == most + 1
    assert found.actors[epoch_stats.OTHERS] == EpochCount(5, 500)
    assert found.commands == {"noop": found.total}
