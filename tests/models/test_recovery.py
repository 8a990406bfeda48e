"""The start of a recovered log: no process follows both logs, and the new log loses nothing."""

import pytest

from stele.log.chain import Verdict
from tests.models.recovery import Search, anything, two_logs
from tests.models.witness import Proc, Rec, Topic, anchored, judge


@pytest.mark.parametrize(("fault", "depth"), [("", 14), ("winner", 17), ("topic", 17)])
def test_no_process_follows_both_logs_and_the_new_log_loses_no_ack(fault: str, depth: int) -> None:
    search = Search(fault, depth=depth)
    assert search.run(anything) == ""
    assert search.visited[0] > 1_000
    assert search.recovered, "no run went on as far as an acknowledgement in the recovered log"


@pytest.mark.parametrize(("fault", "depth"), [("", 10), ("winner", 14)])
def test_first_of_two_recoveries_in_the_log_wins(fault: str, depth: int) -> None:
    search = Search(fault, operators="12", records=1, depth=depth)
    assert search.run(anything) == ""
    assert search.visited[0] > 1_000
    assert search.recovered


def test_two_recoveries_without_a_check_write_two_logs() -> None:
    found = Search("", operators="12", records=0, depth=8, looks=False).run(two_logs)
    assert found.startswith("two recovered logs are written")


def test_reader_that_skips_a_recovery_as_a_stray_acknowledges_behind_it() -> None:
    def forgetful(proc: Proc, rec: Rec, topic: Topic) -> Proc:
        if judge(proc, rec) is Verdict.STRAY:
            return anchored(proc, Rec(rec.prev, rec.own, rec.log, rec.witness, rec.epoch, 0), topic)
        return anchored(proc, rec, topic)

    found = Search("", rule=forgetful).run(anything)
    assert "went past the recovery" in found or "acknowledged" in found
