"""The rule for readers (docs/design.md, rule 11) holds in every reachable world; the earlier rule fails."""

import pytest

from tests.models.witness import (
    Search,
    acknowledged_and_lost,
    anchored,
    false_alarm,
    poisoned,
    replaced,
)


def test_earlier_rule_is_poisoned_by_a_record_of_an_old_writer() -> None:
    found = Search(replaced, "recreate", depth=9).run(poisoned(replaced))
    assert found.startswith("a fresh replay stops by stray")


def test_earlier_rule_acknowledges_a_record_that_no_other_reader_has() -> None:
    found = Search(replaced, "recreate", records=3, depth=12).run(acknowledged_and_lost)
    assert found.startswith("A acknowledged")


@pytest.mark.parametrize(("fault", "records", "depth"), [("", 4, 10), ("twice", 3, 10)])
def test_racing_pipelined_writers_raise_no_false_alarm(
    fault: str, records: int, depth: int
) -> None:
    search = Search(anchored, fault, writers="AB", records=records, depth=depth)
    assert search.run(false_alarm) == ""
    assert search.visited[0] > 1_000


def test_every_acknowledged_record_is_in_the_new_log() -> None:
    search = Search(anchored, "recreate", records=4, depth=14)
    assert search.run(acknowledged_and_lost) == ""
    assert search.visited[0] > 1_000


def test_record_of_an_old_writer_poisons_no_new_log() -> None:
    search = Search(anchored, "recreate", depth=10)
    assert search.run(poisoned(anchored)) == ""
    assert search.visited[0] > 1_000
