"""Reasons for the beginning of a recovered log: no process follows both logs, and the new one loses nothing."""

import pytest

from stele.log.chain import Verdict
from tests.models.recovery import Search, anything, two_logs
from tests.models.witness import Proc, Rec, Topic, anchored, judge


@pytest.mark.parametrize(("fault", "depth"), [("", 14), ("winner", 17), ("topic", 17)])
def test_nobody_follows_both_logs_and_nothing_acknowledged_in_the_new_one_is_lost(
    fault: str, depth: int
) -> None:
    search = Search(fault, depth=depth)
    assert search.run(anything) == ""
    assert search.visited[0] > 1_000
    assert search.recovered, "no run went on as far as an acknowledgement in the recovered log"


@pytest.mark.parametrize(("fault", "depth"), [("", 10), ("winner", 14)])
def test_of_two_who_recover_the_first_in_the_log_counts(fault: str, depth: int) -> None:
    search = Search(fault, operators="12", records=1, depth=depth)
    assert search.run(anything) == ""
    assert search.visited[0] > 1_000
    assert search.recovered


def test_two_who_do_not_look_write_two_logs() -> None:
    found = Search("", operators="12", records=0, depth=8, looks=False).run(two_logs)
    assert found.startswith("two recovered logs are written")


def test_a_reader_that_takes_a_recovery_for_a_stray_acknowledges_behind_it() -> None:
    def forgetful(proc: Proc, rec: Rec, topic: Topic) -> Proc:
        if judge(proc, rec) is Verdict.STRAY:
            return anchored(proc, Rec(rec.prev, rec.own, rec.log, rec.witness, rec.epoch, 0), topic)
        return anchored(proc, rec, topic)

    found = Search("", rule=forgetful).run(anything)
    assert "went past the recovery" in found or "acknowledged" in found
