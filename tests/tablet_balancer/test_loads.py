"""Loads in the balancer: readable, of its log, and consistent with the image."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
import pytest

from stele.domain.balancer.load import Conditions
from stele.domain.commands import CreateKeyspace, CreateTable
from stele.domain.messages import Load
from stele.log.codec import encode_load
from stele.runtime.metrics import foreign_messages
from stele.tablet_balancer import metrics
from stele.tablet_balancer.balancer import described
from stele.tablet_balancer.loads import Loads
from tests.coordinator.world import World, empty_cluster
from tests.domain.load_of import Rate, even, load_of, loads_of


@pytest.fixture
def world() -> World:
    world = empty_cluster()
    for name in ("a1", "b1", "c1"):
        world.add(name, rack="r")
    world.run()
    made = CreateKeyspace("music", {"dc1": 1}, tablets=True, initial_tablets=4)
    assert world.apply(made) is None
    return world


def counted(counter: Any) -> float:
    value: float = counter._value.get()
    return value


def of(world: World, node_id: str, **changes: object) -> Load:
    image = world.image
    known = {"host_id": image.membership.nodes[node_id].host_id, "log_id": image.log_id}
    return load_of(node_id, **{**known, **changes})


def test_reports_are_folded_with_their_age(world: World) -> None:
    loads, before = Loads(), counted(metrics.loads)
    loads.on_record(encode_load(of(world, "a1")), 40.0)
    loads.on_record(encode_load(of(world, "b1")), 0.0)
    table, now_s = loads.table(world.image), time.monotonic()
    assert {*table.by_node} == {"a1", "b1"}
    assert table.age_s("a1", now_s) == pytest.approx(40.0, abs=5)
    assert table.age_s("b1", now_s) == pytest.approx(0.0, abs=5)
    assert loads.table(world.image) == table, "nothing is folded twice"
    assert counted(metrics.loads) == before + 2


def test_heat_is_remembered_between_reports(world: World) -> None:
    """Otherwise each report would be another reason to move a tablet."""
    assert world.apply(CreateTable("music.songs")) is None
    loads, found = Loads(), list[list[float]]()

    def rate_of(hot: int, table: str, tablet: int) -> Rate:
        return even(hot if tablet else 300)

    for sequence, hot in ((1, 5000), (2, 5200), (3, 4800), (4, 9000)):
        told = loads_of(world.image, lambda *_: 1, partial(rate_of, hot))
        for reported in told.by_node.values():
            load = msgspec.structs.replace(reported.load, sequence=sequence)
            loads.on_record(encode_load(load), 0.0)
        (heat,) = loads.table(world.image).heat.values()
        found.append(heat.tolist())
    assert found[0] == found[1] == found[2] == pytest.approx(found[3], rel=0.2)
    assert found[0][1] == pytest.approx(5000 / (15300 / 4))


def test_unreadable_and_foreign_loads_are_left_out_and_counted(
    world: World,
) -> None:
    loads, foreign = Loads(), foreign_messages.labels("load")
    unreadable, others = counted(metrics.unreadable), counted(foreign)
    loads.on_record(b"what is this?", 0.0)
    loads.on_record(encode_load(of(world, "a1", disk_free_bytes=-1)), 0.0)
    loads.on_record(encode_load(of(world, "a1", log_id=bytes([4] * 16))), 0.0)
    assert not loads.table(world.image).by_node
    assert counted(metrics.unreadable) == unreadable + 2
    assert counted(foreign) == others + 1


def test_nodes_are_described_with_and_without_loads(world: World) -> None:
    measure, nodes, _, spread = described(world.image, Conditions(), 0.0)
    assert spread == ()
    assert (measure.by, measure.rate_weight) == ("count", 0)
    assert {node.rate for node in nodes.values()} == {None}
    assert {*nodes} == {"a1", "b1", "c1"}
    assert {
        (n.tablets, n.size_bytes, n.capacity_bytes, n.report_age_s) for n in nodes.values()
    } == {(0, None, None, None)}
    assert world.apply(CreateTable("music.songs")) is None
    loads = loads_of(
        world.image,
        lambda _, tablet: 2**30 * (tablet + 1),
        lambda _, tablet: even(1000 * tablet),
        a1=2**40,
        b1=2**40,
    )
    measure, nodes, _, spread = described(world.image, Conditions({"c1"}, loads=loads), 2.5)
    (songs,) = spread
    held = sorted(nodes[name].tablets for name in ("a1", "b1"))
    assert (songs.table, songs.fewest, songs.most) == ("music.songs", held[0], held[-1])
    assert measure.by == "size"
    assert measure.rate_weight == 50
    assert sum(node.rate or 0 for node in nodes.values()) == 6000
    assert sum(node.tablets for node in nodes.values()) == 4
    assert sum(node.size_bytes or 0 for node in nodes.values()) == 10 * 2**30
    a1, c1 = nodes["a1"], nodes["c1"]
    assert a1.capacity_bytes == 2**40 + (a1.size_bytes or 0)
    assert a1.report_age_s == 2.5
    assert a1.of_share is not None and c1.of_share is None, "who is down has no share"
