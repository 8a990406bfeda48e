"""The time up to which all records have been read, from answers to fetches and delivered records."""

from __future__ import annotations

from stele.runtime.live_flow import FetchAnswer, Tail


def test_time_is_confirmed_only_after_every_partition_answered() -> None:
    tail = Tail()
    tail.start({0: 10, 1: 0}, {0: 10, 1: 0}, 100.0)
    assert tail.look({}, 101.0) is None
    assert tail.look({0: FetchAnswer(10, "a")}, 102.0) is None
    assert tail.look({0: FetchAnswer(10, "a"), 1: FetchAnswer(0, "b")}, 103.0) == 101.0


def test_answer_confirms_the_time_of_the_previous_look() -> None:
    tail = Tail()
    tail.start({0: 10}, {0: 10}, 100.0)
    assert tail.look({0: FetchAnswer(10, 1)}, 100.25) == 100.0
    assert tail.look({0: FetchAnswer(10, 1)}, 100.5) == 100.0
    assert tail.look({0: FetchAnswer(10, 2)}, 100.75) == 100.5


def test_time_is_not_confirmed_while_records_are_undelivered() -> None:
    tail = Tail()
    tail.start({0: 10}, {0: 10}, 100.0)
    assert tail.look({0: FetchAnswer(12, 1)}, 101.0) is None
    assert tail.take(0, 10)
    assert tail.look({0: FetchAnswer(14, 2)}, 102.0) is None
    assert tail.take(0, 11)
    assert tail.look({0: FetchAnswer(16, 3)}, 103.0) == 100.0


def test_busy_partition_confirms_continuously() -> None:
    tail, end, confirmed = Tail(), 0, list[float | None]()
    tail.start({0: 0}, {0: 0}, 0.0)
    for step in range(1, 20):
        confirmed.append(tail.look({0: FetchAnswer(end + 3, step)}, step / 4))
        for offset in range(end, end + 3):
            tail.take(0, offset)
        end += 3
    assert confirmed[-1] is not None
    assert 19 / 4 - confirmed[-1] <= 1.0


def test_confirmed_time_is_that_of_the_slowest_partition() -> None:
    tail = Tail()
    tail.start({0: 0, 1: 0}, {0: 0, 1: 0}, 0.0)
    tail.look({0: FetchAnswer(0, 1), 1: FetchAnswer(0, 1)}, 1.0)
    for step in range(2, 10):
        assert tail.look({0: FetchAnswer(0, step), 1: FetchAnswer(0, 1)}, float(step)) == 0.0


def test_records_before_the_start_are_not_new() -> None:
    tail = Tail()
    tail.start({0: 5}, {0: 7}, 0.0)
    assert [tail.take(0, offset) for offset in (5, 6, 7, 8)] == [False, False, True, True]


def test_new_start_resets_the_confirmed_time() -> None:
    tail = Tail()
    tail.start({0: 0}, {0: 0}, 0.0)
    assert tail.look({0: FetchAnswer(0, 1)}, 1.0) == 0.0
    tail.start({0: 9}, {0: 9}, 50.0)
    assert tail.began_s == 50.0
    assert tail.look({}, 51.0) is None
    assert tail.look({0: FetchAnswer(9, 2)}, 52.0) == 51.0
