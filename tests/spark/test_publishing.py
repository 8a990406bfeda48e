"""A topic that rejects records blocks only its own cluster's topic, and is complete once it accepts them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Set

import pytest

from stele.domain.messages import PlacementRow, SchemaObject
from stele.domain.model.schema import SchemaImage
from stele.domain.ring.ranges import MIN_TOKEN, RangeReplicas
from stele.placements import topic as module
from stele.placements.fold import CurrentRow, HeldRows, Key
from stele.placements.schema_history import ObjectKey
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.topic import PLACEMENTS, Marker, Publishing, Writers
from tests.polling import wait_until


class FakeWriters(Writers[Key, PlacementRow, Mapping[str, HeldRows]]):
    """Topics in memory. Like a real writer, a new one sends all differences, a later one the touched rows."""

    def __init__(self) -> None:
        self.form = PLACEMENTS
        self.topics: dict[str, dict[Key, CurrentRow]] = {}
        self.markers: dict[str, Marker] = {}
        self.broken: set[str] = set()
        self.tries: list[str] = []
        self._fresh: set[str] = set()

    def publish(
        self, cluster: str, marker: Marker, content: Mapping[str, HeldRows], touched: Set[Key]
    ) -> None:
        self.tries.append(cluster)
        if cluster in self.broken:
            raise TimeoutError(f"{cluster} is silent")
        rows = {
            (name, start): held for name, found in content.items() for start, held in found.items()
        }
        topic = self.topics.setdefault(cluster, {})
        is_new = cluster not in self._fresh
        for key in {*topic, *rows} if is_new else touched:
            if key in rows:
                topic[key] = rows[key]
            else:
                topic.pop(key, None)
        self._fresh.add(cluster)
        self.markers[cluster] = marker

    def forget(self, cluster: str) -> None:
        self._fresh.discard(cluster)


class NoWriters(Writers[ObjectKey, SchemaObject, SchemaImage]):
    """Schema topics that accept everything."""

    def __init__(self) -> None:
        self.form = SCHEMA_TOPIC

    def publish(
        self, cluster: str, marker: Marker, content: SchemaImage, touched: Set[ObjectKey]
    ) -> None:
        """Send nothing."""


def rows(epoch: int) -> dict[str, HeldRows]:
    """Return rows of two ranges, of which one changes with each epoch."""
    moved = RangeReplicas(MIN_TOKEN, 7, (f"n{epoch}",), (f"n{epoch}",))
    stays = RangeReplicas(7, MIN_TOKEN, ("n1",), ("n1",))
    return {"p": {MIN_TOKEN: CurrentRow(moved, epoch), 7: CurrentRow(stays, 1)}}


def marker(epoch: int) -> Marker:
    return Marker(epoch, epoch.to_bytes(16).hex())


def test_failing_topic_stops_alone_and_is_complete_after_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    writers, told = FakeWriters(), list[tuple[str, str]]()
    publishing = Publishing(writers, lambda cluster, error, _: told.append((cluster, str(error))))
    over = threading.Event()
    thread = threading.Thread(target=publishing.run, args=(over.is_set,))
    thread.start()
    try:
        touched = {("p", MIN_TOKEN)}
        for cluster in ("good", "bad"):
            publishing.publish(cluster, marker(1), rows(1), touched)
        writers.broken = {"bad"}
        for epoch in (2, 3):
            for cluster in ("good", "bad"):
                publishing.publish(cluster, marker(epoch), rows(epoch), touched)
        assert publishing.published == {"good": 3, "bad": 1}
        assert told == [("bad", "bad is silent")]
        assert "bad is silent" in publishing.stopped["bad"]
        assert set(publishing.stopped) == {"bad"}
        before = len(writers.tries)
        wait_until(lambda: len(writers.tries) > before + 1, "two more tries")
        writers.broken = set()
        wait_until(lambda: not publishing.stopped, "the topic to take it")
    finally:
        over.set()
        thread.join(5)
    assert publishing.published == {"good": 3, "bad": 3}
    assert writers.topics["bad"] == writers.topics["good"]
    publishing.publish("bad", marker(4), rows(4), touched)
    assert (writers.markers["bad"], publishing.published["bad"]) == (marker(4), 4)
    assert writers.topics["bad"]["p", MIN_TOKEN].from_epoch == 4


def test_rows_queued_during_a_retry_are_published_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.0)
    writers = FakeWriters()
    publishing = Publishing(writers, lambda *_: None)
    writers.broken = {"c"}
    touched = {("p", MIN_TOKEN)}
    publishing.publish("c", marker(1), rows(1), touched)
    writers.broken = set()
    publish = writers.publish

    def late(cluster: str, at: Marker, content: Mapping[str, HeldRows], keys: Set[Key]) -> None:
        publish(cluster, at, content, keys)
        if at.epoch == 1:
            publishing.publish("c", marker(2), rows(2), touched)

    monkeypatch.setattr(writers, "publish", late)
    publishing.run(lambda: not publishing.stopped)
    assert publishing.published == {"c": 2}
    assert writers.topics["c"]["p", MIN_TOKEN].from_epoch == 2
