"""The load by node over time: at any time, in any order, and in bounded memory for many nodes."""

from __future__ import annotations

import time

import msgspec
import pytest

from stele.domain.balancer.load import NO_LOADS
from stele.domain.image import Image
from stele.domain.messages import Load
from stele.log.codec import encode_load
from stele.tablet_balancer import loads
from stele.tablet_balancer.loads import HOLDS_MS, Histories, HistorySpan, Loads, _Moments, _Weight
from tests.coordinator.world import World, empty_cluster
from tests.domain.load_of import Rate, load_of, table_of

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def weight(size_bytes: int = 1) -> _Weight:
    return _Weight(rate=None, size_bytes=size_bytes, tablets=1)


def of(image: Image, node_id: str, size_bytes: int, **rates: Rate) -> Load:
    known = {int(tablet[1:]): rate for tablet, rate in rates.items()}
    sizes = dict.fromkeys(range(2), size_bytes)
    table = table_of("t1", 4, sizes, known if rates else None)
    host_id = image.membership.nodes[node_id].host_id
    return load_of(node_id, table, host_id=host_id, log_id=image.log_id)


@pytest.fixture
def world() -> World:
    world = empty_cluster()
    for name in ("a1", "b1"):
        world.add(name, rack="r")
    world.run()
    return world


def test_reports_from_before_the_start_keep_their_time(world: World) -> None:
    loads, image = Loads(), world.image
    loads.on_record(encode_load(of(image, "a1", 10, t0=Rate(3, 4, 5))), 1800.0)
    loads.on_record(encode_load(of(image, "b1", 20)), 1800.0)
    newer = msgspec.structs.replace(of(image, "a1", 30, t0=Rate(), t1=Rate(1)), sequence=2)
    loads.on_record(encode_load(newer), 0.0)
    assert loads.table(image) != NO_LOADS
    for span in HistorySpan:
        samples = loads.histories.answer(span).samples
        first, last = samples[0], samples[-1]
        assert first.sizes == {"a1": 20, "b1": 40}
        assert first.rates == {"a1": 12}, "who does not count has no rate"
        assert first.tablets == {"a1": 2, "b1": 2}
        assert (last.sizes, last.rates) == ({"a1": 60}, {"a1": 1})
        ago_ms = time.time_ns() // 1_000_000 - first.at_ms
        assert 1_800_000 <= ago_ms <= 1_800_000 + loads.histories.answer(span).every_ms + MINUTE_MS


def test_report_counts_until_the_next_one_is_long_overdue() -> None:
    moments = _Moments(60 * MINUTE_MS, MINUTE_MS)
    moments.note(NOW_MS, NOW_MS - 10 * MINUTE_MS, "a1", weight())
    moments.note(NOW_MS, NOW_MS, "a1", weight(2))
    known = [sample.sizes.get("a1", 0) for sample in moments.samples(NOW_MS)]
    stands = 1 + HOLDS_MS // MINUTE_MS
    assert known == [1] * stands + [0] * (10 - stands) + [2]


def test_old_samples_and_samples_of_the_future_are_dropped() -> None:
    moments = _Moments(60 * MINUTE_MS, MINUTE_MS)
    for minutes in (90, 59, 0, -30):
        moments.note(NOW_MS, NOW_MS - minutes * MINUTE_MS, f"{minutes}", weight())
    known = {node for sample in moments.samples(NOW_MS) for node in sample.sizes}
    assert known == {"59", "0"}
    assert [*moments.samples(NOW_MS + 61 * MINUTE_MS)] == []


def test_history_of_many_nodes_is_bounded_and_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loads, "MOST_CELLS", 600)
    moments = _Moments(60 * MINUTE_MS, MINUTE_MS)
    for minute in range(60):
        for node in range(100):
            moments.note(NOW_MS, NOW_MS - (59 - minute) * MINUTE_MS, f"n{node}", weight(minute))
    samples = [*moments.samples(NOW_MS)]
    assert 3 <= len(samples) <= 6
    assert [s.at_ms for s in samples] == sorted({s.at_ms for s in samples})
    assert {*samples[-1].sizes.values()} == {59}, "the newest stays"


def test_histories_skip_unknown_nodes_and_restart_for_another_cluster(world: World) -> None:
    histories, image = Histories(), world.image
    histories.note(image, of(image, "a1", 1), 0.0)
    histories.note(image, msgspec.structs.replace(of(image, "a1", 1), node_id="zz"), 0.0)
    assert {*histories.answer(HistorySpan.HOUR).samples[0].sizes} == {"a1"}
    other = msgspec.structs.replace(
        image, founding=msgspec.structs.replace(image.founding, cluster_id="another")
    )
    histories.note(other, of(image, "b1", 1), 0.0)
    assert {*histories.answer(HistorySpan.HOUR).samples[0].sizes} == {"b1"}
