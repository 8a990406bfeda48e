"""The rule for readers (docs/design.md, rule 11) holds in every reachable world; the rule before it fails."""

import pytest

from tests.models.witness import (
    Search,
    acknowledged_and_lost,
    anchored,
    false_alarm,
    poisoned,
    replaced,
)


def test_the_replaced_rule_is_poisoned_by_an_old_writers_record() -> None:
    found = Search(replaced, "recreate", depth=9).run(poisoned(replaced))
    assert found.startswith("a fresh replay stops by stray")


def test_the_replaced_rule_acknowledges_what_nobody_else_has() -> None:
    found = Search(replaced, "recreate", records=3, depth=12).run(acknowledged_and_lost)
    assert found.startswith("A acknowledged")


@pytest.mark.parametrize(("fault", "records", "depth"), [("", 4, 10), ("twice", 3, 10)])
def test_racing_pipelined_writers_raise_no_alarm(fault: str, records: int, depth: int) -> None:
    search = Search(anchored, fault, writers="AB", records=records, depth=depth)
    assert search.run(false_alarm) == ""
    assert search.visited[0] > 1_000


def test_nothing_is_acknowledged_that_the_new_log_does_not_hold() -> None:
    search = Search(anchored, "recreate", records=4, depth=14)
    assert search.run(acknowledged_and_lost) == ""
    assert search.visited[0] > 1_000


def test_an_old_writers_record_poisons_no_new_log() -> None:
    search = Search(anchored, "recreate", depth=10)
    assert search.run(poisoned(anchored)) == ""
    assert search.visited[0] > 1_000
