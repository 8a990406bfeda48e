"""Own records count as read by their delivery reports: in order, once, and only soon after a proof."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.log.delivered import MAX_AGE_S, MAX_REPORTED, Delivered
from stele.log.errors import AnchorLostError
from stele.log.port import Record
from stele.log.pulse import Moment


def record(offset: int) -> Record:
    return Record(offset, b"value %d" % offset)


def proven(max_age_s: float = inf, at: int = 0) -> Delivered:
    """One whose record at ``at`` was reported and fetched."""
    delivered = Delivered(at, max_age_s)
    assert not delivered.reported(*record(at), Moment.now())
    assert delivered.fetched([record(at)]) == [record(at)]
    return delivered


def test_the_record_that_is_read_next_is_read_by_its_report_and_not_once_more_when_it_is_fetched() -> (
    None
):
    delivered = proven()
    assert delivered.reported(*record(1), Moment.now())
    assert delivered.reported(*record(2), Moment.now())
    assert delivered.fetched([record(1), record(2), record(3)]) == [record(3)]
    assert delivered.reported(*record(4), Moment.now())


def test_a_record_behind_one_that_was_not_fetched_yet_waits_until_it_is_fetched() -> None:
    delivered = proven()
    assert not delivered.reported(*record(2), Moment.now())
    assert delivered.fetched([record(1)]) == [record(1)]
    assert delivered.fetched([record(2)]) == [record(2)]


def test_nothing_is_read_by_a_report_before_an_own_record_was_fetched() -> None:
    delivered = Delivered(5, inf)
    assert not delivered.reported(*record(5), Moment.now())
    assert not delivered.reported(*record(6), Moment.now())
    assert delivered.fetched([record(5)]) == [record(5)]
    assert delivered.fetched([record(6)]) == [record(6)]


def test_a_report_that_comes_after_its_record_was_fetched_is_proof_as_well() -> None:
    delivered = Delivered(5, inf)
    delivered.fetched([record(5)])
    assert not delivered.reported(*record(5), Moment.now())
    assert delivered.reported(*record(6), Moment.now())


def test_a_report_of_another_value_than_was_fetched_there_is_no_proof() -> None:
    delivered = Delivered(5, inf)
    delivered.fetched([record(5)])
    assert not delivered.reported(5, b"another topic's", Moment.now())
    assert not delivered.reported(*record(6), Moment.now())


def test_others_records_are_no_proof() -> None:
    delivered = Delivered(5, inf)
    delivered.fetched([record(5), record(6)])
    assert not delivered.reported(*record(7), Moment.now())


@pytest.mark.parametrize("clock", [0, 1, 2])
def test_a_report_counts_only_soon_after_the_proven_record_was_sent_by_each_clock(
    clock: int,
) -> None:
    delivered = Delivered(0)
    sent = Moment.now()
    earlier = [*sent]
    earlier[clock] -= 2 * MAX_AGE_S
    delivered.reported(*record(0), Moment(*earlier))
    delivered.fetched([record(0)])
    assert not delivered.reported(*record(1), sent)


@pytest.mark.parametrize(
    "fetched",
    [
        [Record(1, b"another")],
        [record(2)],
        [Record(1, b"another"), record(2)],
    ],
)
def test_a_record_that_was_read_by_its_report_and_is_not_there_when_it_is_fetched_ends_reading(
    fetched: list[Record],
) -> None:
    delivered = proven()
    assert delivered.reported(*record(1), Moment.now())
    with pytest.raises(AnchorLostError, match=r"offset 1 .* do not give the record"):
        delivered.fetched(fetched)


def test_no_report_counts_after_reading_has_ended() -> None:
    delivered = proven()
    assert delivered.reported(*record(1), Moment.now())
    with pytest.raises(AnchorLostError):
        delivered.fetched([Record(1, b"another")])
    assert not delivered.reported(*record(2), Moment.now())


def test_a_report_that_was_not_read_and_is_not_there_when_it_is_fetched_is_forgotten() -> None:
    delivered = proven()
    assert not delivered.reported(*record(2), Moment.now())
    others = [record(1), Record(2, b"another")]
    assert delivered.fetched(others) == others
    assert delivered.reported(*record(3), Moment.now())


def test_records_that_nobody_fetches_are_read_up_to_a_number() -> None:
    delivered = proven()
    read = [delivered.reported(*record(1 + n), Moment.now()) for n in range(MAX_REPORTED + 5)]
    assert read == [True] * MAX_REPORTED + [False] * 5
    everything = [record(1 + n) for n in range(MAX_REPORTED + 5)]
    assert delivered.fetched(everything) == everything[MAX_REPORTED:]


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_each_record_is_read_once_in_the_logs_order_however_reports_and_fetches_mix(
    owns: list[bool], data: st.DataObject
) -> None:
    log = [record(offset) for offset in range(len(owns))]
    delivered, read = Delivered(0, inf), list[Record]()
    reports = [each for each, own in zip(log, owns, strict=True) if own]
    comes_first, fetched = st.booleans(), 0
    while fetched < len(log):
        is_report = data.draw(comes_first)
        if reports and is_report:
            each = reports.pop(0)
            if delivered.reported(*each, Moment.now()):
                read.append(each)
        else:
            count = data.draw(st.integers(1, len(log) - fetched))
            read += delivered.fetched(log[fetched : fetched + count])
            fetched += count
        assert read == log[: len(read)]
        assert len(read) >= fetched
    assert read == log
