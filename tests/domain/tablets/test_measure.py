"""Tablets are balanced by bytes where these are known, else by numbers of replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import pytest

from stele.domain.balancer.columns import Tablets, tablets_of
from stele.domain.balancer.load import NO_LOADS, Conditions, LoadTable
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import CreateTable, Leave, SetSetting, Truncate
from stele.domain.image import Image
from stele.domain.model.requests import RequestChanged
from stele.domain.names import RequestStatus
from stele.domain.planner.cluster import BalanceBy, NodeRole
from tests.coordinator.test_tablets import with_table
from tests.coordinator.world import World
from tests.domain.load_of import IDLE, TOTAL_BYTES, Rate, loads_of

GIB = 2**30
SMALL = 5 * GIB // 100
"""Counted size of the smallest tablets."""


SizeOf = Callable[[str, int], int]


def size_of(table: str, tablet: int) -> int:
    """Return the size: small tablets and a few large ones, at different places in the two tables."""
    at = tablet if table == "music.songs" else tablet + 1
    return 4 * GIB if at % 4 == 0 else GIB


def world_of(nodes: str = "a1 b1 c1 d1", tablets: int = 16) -> World:
    world = with_table(nodes, tablets, rf=1)
    assert world.apply(CreateTable("music.bands")) is None
    return world


def held(image: Image, size_of: SizeOf = size_of) -> Counter[str]:
    """Return bytes by node."""
    found = Counter[str]()
    for table in image.schema.with_tablets():
        name = image.schema.full_name(table)
        for tablet, row in enumerate(image.ring.placements[table.placement].rows):
            found.update(dict.fromkeys(row.reads, size_of(name, tablet)))
    return found


def balance(world: World) -> None:
    """Run until the balancer proposes nothing."""
    world.balances = True
    while proposal(world.image, Conditions(loads=world.loads(world.image))).moves:
        world.tick()
        world.run()


def setting(world: World, name: str, value: str) -> None:
    assert world.apply(SetSetting(name, value)) is None


def by(world: World, loads: LoadTable) -> tuple[BalanceBy, str]:
    measure = tablets_of(world.image, loads=loads).measure
    return measure.by, measure.why


def test_bytes_are_evened_out_and_then_nothing_moves() -> None:
    world = world_of()
    world.loads = partial(loads_of, size_of=size_of)
    assert max(held(world.image).values()) > 1.5 * min(held(world.image).values())
    balance(world)
    bytes_of = held(world.image)
    assert max(bytes_of.values()) - min(bytes_of.values()) <= 2 * GIB


class Reporting:
    """Each node reports periodically, one after the other."""

    def __init__(
        self,
        world: World,
        size_of: SizeOf,
        every_s: float,
        rate_of: Callable[[str, int], Rate] = lambda table, tablet: IDLE,
    ) -> None:
        self._world = world
        self._size_of = size_of
        self._rate_of = rate_of
        self._every_s = every_s
        self._told = dict[str, float]()
        self._began_s = world.now_s
        self.table = loads_of(world.image, size_of, rate_of)

    def __call__(self, image: Image) -> LoadTable:
        now_s = self._world.now_s - self._began_s
        newest = loads_of(image, self._size_of, self._rate_of).by_node
        for number, (node_id, reported) in enumerate(sorted(newest.items())):
            later_s = self._every_s * (number / len(newest) - 1)
            if now_s - self._told.get(node_id, later_s) >= self._every_s:
                self._told[node_id] = now_s
                load = msgspec.structs.replace(reported.load, sequence=int(now_s * 1000))
                self.table = self.table.with_load(load, now_s)
        self.table = self.table.current(image)
        return self.table


def moves_of(world: World) -> Counter[tuple[str, int]]:
    """Return the number of migrations of each tablet."""
    facts = (fact for epoch in world.history.epochs for fact in epoch.facts)
    requests = (fact.request for fact in facts if isinstance(fact, RequestChanged))
    return Counter(
        (request.table_id, request.tablet)
        for request in requests
        if request.to_node and request.status is RequestStatus.DONE
    )


@pytest.mark.parametrize("every_s", [1.0, 7.0, 60.0])
def test_late_reports_do_not_move_a_tablet_twice(every_s: float) -> None:
    """A tablet has moved, and neither its old nor its new node has reported it, or only the old one."""
    world = world_of(tablets=32)
    large = {
        (world.image.schema.full_name(table), tablet)
        for table in world.image.schema.with_tablets()
        for tablet, row in enumerate(world.image.ring.placements[table.placement].rows)
        if row.reads == ("a1",)
    }

    def size_of(table: str, tablet: int) -> int:
        return (4 if (table, tablet) in large else 1) * GIB

    world.loads = Reporting(world, size_of, every_s)
    balance(world)
    for _ in range(400):
        world.tick()
    bytes_of = held(world.image, size_of)
    assert max(bytes_of.values()) - min(bytes_of.values()) <= 2 * 4 * GIB
    moves = moves_of(world)
    assert moves and max(moves.values()) == 1
    assert not proposal(world.image, Conditions(loads=world.loads(world.image))).moves


def test_node_of_half_the_capacity_gets_half_the_bytes() -> None:
    world = world_of()
    half = TOTAL_BYTES // 2
    world.loads = lambda image: loads_of(image, size_of, d1=half - held(image)["d1"])
    balance(world)
    bytes_of = held(world.image)
    whole = np.mean([bytes_of[name] for name in ("a1", "b1", "c1")])
    assert bytes_of["d1"] == pytest.approx(whole / 2, abs=2 * GIB)


def test_leaving_node_is_drained_by_size() -> None:
    world = world_of()
    world.balances, world.loads = True, partial(loads_of, size_of=size_of)
    assert world.apply(Leave("d1")) is None
    world.run()
    bytes_of = held(world.image)
    assert "d1" not in bytes_of
    assert max(bytes_of.values()) - min(bytes_of.values()) <= 4 * GIB


def test_balance_is_by_count_without_reports_or_by_setting() -> None:
    world = world_of("a1 b1 c1")
    loads = loads_of(world.image, size_of)
    assert by(world, NO_LOADS) == (BalanceBy.COUNT, "no load is known of a1, b1, c1")
    lacks = LoadTable(loads.by_node.delete("b1"))
    why = "the loads of 2 of 3 nodes are known; b1 did not report, and tablets are not evened out there"
    assert by(world, lacks) == (BalanceBy.SIZE, why)
    many = world_of(" ".join(f"n{number}" for number in range(1, 8)), tablets=1)
    assert by(many, NO_LOADS)[1] == "no load is known of n1, n2, n3, n4, n5 and 2 more"
    assert by(world, loads) == (BalanceBy.SIZE, "the loads of all 3 nodes are known")
    assert world.apply(Leave("b1")) is None
    assert by(world, lacks)[0] is BalanceBy.SIZE, "its room is not needed"
    setting(world, "tablet_balance_by", "count")
    assert by(world, loads) == (BalanceBy.COUNT, "tablet_balance_by is count")
    assert (tablets_of(world.image, loads=loads).state.unit_load == 1).all()


def test_only_a_node_without_a_report_is_left_out_unless_others_leave() -> None:
    world = world_of()
    assert _moved(world) == {"a1", "c1"}
    assert _moved(world, silent="c1") == {"a1", "b1"}
    assert world.apply(Leave("d1")) is None
    assert _moved(world, silent="c1") == {"c1", "d1"}


def _moved(world: World, silent: str = "") -> set[str]:
    """Return the nodes that move or receive tablets next."""
    loads = loads_of(world.image, size_of)
    conditions = Conditions(
        loads=LoadTable(loads.by_node.delete(silent) if silent else loads.by_node)
    )
    asked = [each.move for each in proposal(world.image, conditions).moves]
    return {node for move in asked for node in (move.from_node, move.to_node)}


def columns(world: World, loads: LoadTable) -> Tablets:
    return tablets_of(world.image, loads=loads)


def test_small_and_new_tablets_count_as_a_hundredth_of_the_target() -> None:
    world = world_of("a1 b1 c1", tablets=4)
    loads = loads_of(world.image, lambda table, tablet: tablet * SMALL)
    assert world.apply(CreateTable("music.new")) is None
    what = columns(world, loads)
    first = what.first[what.names.index("music.songs")]
    assert what.state.unit_load[first : first + 4].tolist() == [SMALL, SMALL, 2 * SMALL, 3 * SMALL]
    new = what.first[what.names.index("music.new")]
    assert what.state.unit_load[new : new + 4].tolist() == [SMALL] * 4
    assert not what.state.unknown.any()
    assert world.apply(Truncate("music.songs")) is None
    world.run()
    assert columns(world, loads).state.size[first : first + 4].tolist() == [0] * 4
    setting(world, "minimal_tablet_size_for_balancing", "1")
    assert columns(world, loads).state.unit_load[new] == 1


def test_migrating_tablets_count_with_their_size_at_the_target() -> None:
    world = world_of()
    world.loads = partial(loads_of, size_of=size_of)
    world.balances = True
    world.until(lambda: world.image.topology.transitions, "a move")
    what = columns(world, world.loads(world.image))
    moving = np.flatnonzero(what.state.busy)
    assert len(moving)
    for unit in moving.tolist():
        table, tablet = what.tablet(unit)
        assert what.state.size[unit] == size_of(table, tablet)
    total = what.state.load.sum()
    assert total == sum(held(world.image).values())


def test_full_disk_receives_nothing_and_moves_tablets_away() -> None:
    world = world_of()
    loads = loads_of(world.image, size_of)
    emptiest = min(held(world.image), key=lambda name: held(world.image)[name])
    assert emptiest in {
        each.move.to_node for each in proposal(world.image, Conditions(loads=loads)).moves
    }
    reported = loads.by_node[emptiest]
    load = msgspec.structs.replace(
        reported.load, sequence=2, disk_total_bytes=100 * reported.load.disk_free_bytes
    )
    full = loads.with_load(load, 1.0)
    assert full.full() == {emptiest}
    moves = proposal(world.image, Conditions(loads=full)).moves
    assert moves
    assert emptiest not in {each.move.to_node for each in moves}
    what = columns(world, full)
    assert what.state.state[what.node_ids.index(emptiest)] == NodeRole.NORMAL
