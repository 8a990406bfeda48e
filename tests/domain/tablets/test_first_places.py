"""Counts that the image keeps up to date, compared with the planner's view of all tablets."""

from collections import Counter

import numpy as np

from stele.domain.balancer.columns import tablets_of
from stele.domain.balancer.first_places import first_places
from stele.domain.commands import (
    CreateKeyspace,
    CreateTable,
    DropTable,
    Leave,
    MoveTablets,
    ResizeTable,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.ring import Counts, RingImage, TabletCounts, Weighed, replicas_on
from stele.domain.planner.shares import surplus
from stele.domain.ring.columns import PAD
from stele.domain.tablets.sizing import in_rack
from tests.coordinator.world import World, empty_cluster


def are_equal(one: Counts, other: Counts) -> bool:
    """Compare two counts. Values beyond the smaller shape must be 0."""
    rows, columns = np.minimum(one.shape, other.shape)
    same = bool((one[:rows, :columns] == other[:rows, :columns]).all())
    return same and one.sum() == other.sum()


class Checked:
    """Compares both at every image, and counts the images."""

    def __init__(self) -> None:
        self.images = 0

    def __call__(self, image: Image) -> None:
        self.images += 1
        there, found = tablets_of(image), first_places(image)
        state, place = found.state, {n: at for at, n in enumerate(found.node_ids)}
        held = Counter[str]()
        for at, node in enumerate(there.state.nodes):
            load = float(there.state.load[:, at].sum())
            if node.id not in place:
                assert load == 0
                continue
            same = place[node.id]
            assert state.nodes[same] == node and state.load[0, same] == load
            first, first_there = state.first_shard[same], there.state.first_shard[at]
            shards = slice(first, first + node.shards)
            shards_there = slice(first_there, first_there + node.shards)
            assert (state.shard_load[shards] == there.state.shard_load[shards_there]).all()
            on = np.arange(len(there.node_ids)) == at
            replicas = int(there.held(on).sum())
            held[node.dc] += replicas
            held[in_rack(node.dc, node.rack)] += replicas
        nodes = [at for at, node_id in enumerate(there.node_ids) if node_id in place]
        weight = np.arange(1, 1 + len(nodes), dtype=np.float64)
        expected = surplus(there.state.count[:, nodes], weight)
        same_nodes = np.array([place[there.node_ids[at]] for at in nodes])
        assert (found.surplus(same_nodes, weight) == expected).all()
        assert {k: n for k, n in found.held.items() if n} == {k: n for k, n in held.items() if n}
        counts = RingImage(image.ring.placements, image.ring.nodes).tablet_counts
        kept = image.ring.tablet_counts
        assert are_equal(kept.total, counts.total)
        assert {*kept.by_map} == {*counts.by_map}
        numbers = np.arange(len(image.ring.nodes.names))
        assert all(
            (replicas_on(kept.by_map[name], numbers) == replicas_on(count, numbers)).all()
            for name, count in counts.by_map.items()
        )


def test_sums_are_kept_only_for_nodes_with_numbers() -> None:
    """A node without a number soon gets one, and its sum would be updated forever."""
    counts, weight = TabletCounts(), np.ones(2)
    lasting = Weighed.of(np.array([0, 1]), weight)
    for key in (Weighed.of(np.array([0, PAD]), weight), lasting):
        assert counts.surplus(key).tolist() == [0, 0]
    assert [*counts.surpluses] == [lasting]


def test_new_tables_use_the_same_loads_as_the_planner() -> None:
    """Tablets move, wait to move and are resized meanwhile, beside dropped and co-located tables."""
    world, checked = empty_cluster(), Checked()
    for rack in "abc":
        world.add(f"{rack}1 {rack}2", shards=2)
    world.run()
    world.history.on_image = checked
    world.balances = True
    keyspace = CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=8)
    for command in (
        keyspace,
        CreateTable("music.songs"),
        CreateTable("music.bands"),
        CreateTable("music.by_band", colocated_with="music.bands"),
        CreateTable("music.gone"),
    ):
        assert world.apply(command) is None
    row = _row(world, "music.songs")
    target = next(n for n in ("a1", "a2") if n not in row)
    move = TabletMove(table="music.songs", tablet=0, from_node=_other(target), to_node=target)
    assert world.apply(MoveTablets((move,))) is None
    assert world.apply(DropTable("music.gone")) is None
    world.run()
    assert world.apply(ResizeTable("music.songs", 16)) is None
    assert world.apply(Leave("b2")) is None
    world.add("d1", rack="b", shards=4)
    world.run()
    assert checked.images > 50


def _row(world: World, table: str) -> tuple[str, ...]:
    data = world.image.schema.serving(table)
    assert data is not None
    return world.image.ring.placements[data.placement].rows[0].reads


def _other(node_id: str) -> str:
    return {"a1": "a2", "a2": "a1"}[node_id]
