"""The compacted topic when several processes write it: the newest one fences all others."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.tokens import MIN_TOKEN
from stele.placements.fold import Held, HeldRows
from stele.placements.topic import Marker, TopicWriter, WriterFenced
from tests.spark.checks import settled

pytestmark = pytest.mark.broker

LOW = RangeReplicas(MIN_TOKEN, 7, ("n2",), ("n2",))
HIGH = RangeReplicas(7, MIN_TOKEN, ("n1",), ("n1",), 3, 2)
WHOLE = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("n1",), ("n1",))
TWO = {MIN_TOKEN: Held(LOW, 1), 7: Held(HIGH, 1)}
BOTH = {("p", MIN_TOKEN), ("p", 7)}


def marker(epoch: int) -> Marker:
    return Marker(epoch, epoch.to_bytes(16, "big").hex())


def ranges(kafka: str, cluster: str, epoch: int) -> tuple[int, dict[str, list[RangeReplicas]]]:
    view = settled(kafka, cluster, epoch)
    found: dict[str, list[RangeReplicas]] = {}
    for (name, _), told in sorted(view.rows.items()):
        found.setdefault(name, []).append(told.row)
    return view.marker.epoch, found


def test_a_row_that_is_gone_leaves_the_topic_and_the_marker_is_the_epoch(
    kafka: str, topics: str
) -> None:
    writer = TopicWriter(kafka, topics)
    assert writer.publish(marker(1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 1) == (1, {"p": [LOW, HIGH]})
    assert writer.publish(marker(2), {"p": {MIN_TOKEN: Held(WHOLE, 2)}}, BOTH)
    assert ranges(kafka, topics, 2) == (2, {"p": [WHOLE]})
    assert not writer.publish(marker(2), {"p": TWO}, BOTH)
    assert not writer.publish(marker(1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 2) == (2, {"p": [WHOLE]})


def test_an_older_writer_cannot_put_its_rows_after_a_newer_ones_marker(
    kafka: str, topics: str
) -> None:
    slow = TopicWriter(kafka, topics)
    slow.publish(marker(1), {"p": TWO}, BOTH)
    slow._producer.begin_transaction()
    slow._produce(f"{topics}/p/7", b"the row of a writer that stops in the middle")
    slow._producer.flush(10)

    fast = TopicWriter(kafka, topics)
    assert fast.publish(marker(5), {"p": {MIN_TOKEN: Held(WHOLE, 5)}}, BOTH)
    with pytest.raises(WriterFenced):
        slow._commit()
    with pytest.raises(WriterFenced):
        TopicWriter(kafka, topics)
        fast.publish(marker(6), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 5) == (5, {"p": [WHOLE]})

    again = TopicWriter(kafka, topics)
    assert not again.publish(marker(4), {"p": TWO}, BOTH)
    assert not again.publish(marker(5), {"p": {MIN_TOKEN: Held(WHOLE, 5)}}, BOTH)
    assert ranges(kafka, topics, 5) == (5, {"p": [WHOLE]})


def test_two_writers_that_take_turns_leave_the_newest_rows(kafka: str, topics: str) -> None:
    rows: HeldRows = {}
    for epoch in range(1, 9):
        writer = TopicWriter(kafka, topics)  # opening is what a writer does that was fenced
        low = Held(RangeReplicas(MIN_TOKEN, 7, (f"n{epoch}",), (f"n{epoch}",)), epoch)
        rows = {MIN_TOKEN: low, 7: Held(HIGH, 1)}
        assert writer.publish(marker(epoch), {"p": rows}, {("p", MIN_TOKEN)})
        assert not writer.publish(marker(epoch - 1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 8) == (8, {"p": [rows[MIN_TOKEN].row, HIGH]})


def test_a_topic_that_lost_rows_is_repaired_by_the_first_publication(
    kafka: str, topics: str
) -> None:
    writer = TopicWriter(kafka, topics)
    writer.publish(marker(3), {"q": TWO}, set())
    again = TopicWriter(kafka, topics)
    assert again.publish(marker(3), {"p": TWO}, set())
    assert ranges(kafka, topics, 3) == (3, {"p": [LOW, HIGH]})


def test_what_an_earlier_build_wrote_as_json_is_replaced_by_the_first_publication(
    kafka: str, topics: str
) -> None:
    old = Producer({"bootstrap.servers": kafka})
    for key in (f"p/{MIN_TOKEN}", "gone/3"):
        old.produce(f"stele.{topics}.placements", b'{"epoch": 1}', f"{topics}/{key}", partition=0)
    old.produce(f"stele.{topics}.placements", b'{"epoch": 9}', f"{topics}/epoch", partition=0)
    assert old.flush(20) == 0
    writer = TopicWriter(kafka, topics)
    assert writer.publish(marker(3), {"p": TWO}, set())
    view = settled(kafka, topics, 3)
    assert (set(view.rows), view.unread) == (BOTH, frozenset())
    assert {row.cluster for row in view.rows.values()} == {topics}
