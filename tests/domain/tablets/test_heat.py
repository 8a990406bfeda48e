"""Rates count beside bytes, relative to the mean, and tablets do not move while rates fluctuate."""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from stele.domain.balancer.columns import Tablets, tablets_of
from stele.domain.balancer.load import SLIGHT, STEADY, Conditions, LoadTable, heats, with_heat
from stele.domain.balancer.proposals import proposal, tablet_verdicts
from stele.domain.commands import ResizeTable, SetSetting
from stele.domain.image import Image
from stele.domain.model.tablet_stats import TabletStats
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.load_of import IDLE, Rate, even, loads_of
from tests.domain.tablets.test_measure import GIB, Reporting, balance, moves_of

LEAST = 25.0
HOT = 8000
"""Rate of one tablet, where the others serve a hundred each."""


def stats(rates: list[float]) -> TabletStats:
    columns = np.zeros((4, len(rates)))
    columns[1] = rates
    return TabletStats(columns)


def heat(rates: list[float], before: list[float] | None = None) -> list[float]:
    known = {} if before is None else {"t": np.array(before)}
    return [float(each) for each in heats({"t": stats(rates)}, known, LEAST)["t"]]


def test_heat_is_relative_to_the_mean_or_a_least_rate() -> None:
    found = heats({"t": stats([100.0, 300.0]), "u": stats([0.0, 0.0, float("nan")])}, {}, LEAST)
    assert found["t"].tolist() == [1.0, 3.0]
    assert np.nan_to_num(found["u"], nan=-1).tolist() == [0.0, 0.0, -1.0]
    assert heat([5.0, 0.0]) == [0.2, 0.0], "a few operations do not weigh like gigabytes"
    assert heats({}, {}, LEAST) == {}


def test_heat_changes_only_on_a_clear_difference() -> None:
    assert heat([130.0, 70.0], [1.1, 0.8]) == [1.1, 0.8]
    assert heat([170.0, 30.0], [1.1, 0.8]) == [1.7, 0.3]
    assert heat([192.0, 8.0], [2.0, 0.0]) == [2.0, 0.0]
    assert heat([100.0, 300.0], [1.0, 1.0, 1.0, 1.0]) == [0.5, 1.5], "of other tablets"
    assert heat([100.0, float("nan")], [1.0, 7.0]) == [1.0, 7.0], "nobody tells it now"


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=8), st.floats(0.5, 2))
def test_equal_growth_of_all_rates_changes_nothing(rates: list[float], times: float) -> None:
    rates = [rate + 2 * LEAST for rate in rates]
    assert heat([rate * times for rate in rates]) == pytest.approx(heat(rates))


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100)), min_size=1, max_size=8))
def test_counted_heat_stays_close_to_the_current_heat(pairs: list[tuple[float, float]]) -> None:
    now = heat([rate for rate, _ in pairs])
    found = heat([rate for rate, _ in pairs], [before for _, before in pairs])
    for counts, is_ in zip(found, now, strict=True):
        low, high = sorted((counts, is_))
        assert high <= low * STEADY * (1 + 1e-9) or high - low <= SLIGHT * (1 + 1e-9)


def rate_of(hot: set[int], table: str, tablet: int) -> Rate:
    return even(HOT if tablet in hot else 100)


def size_of(table: str, tablet: int) -> int:
    return GIB


def world_of(nodes: str = "a1 b1 c1 d1", tablets: int = 32, weight: int = 50) -> World:
    """Return a world whose tables are not split for their rates."""
    world = with_table(nodes, tablets, rf=1)
    for name, value in {"target_tablet_rate": 0, "tablet_rate_weight": weight}.items():
        assert world.apply(SetSetting(name, str(value))) is None
    return world


def columns(world: World, loads: LoadTable) -> Tablets:
    return tablets_of(world.image, loads=loads)


def holds(world: World) -> dict[str, list[int]]:
    """Return the tablets of each node."""
    found = dict[str, list[int]]()
    for number, row in enumerate(tablets(world)):
        for node_id in row.reads:
            found.setdefault(node_id, []).append(number)
    return found


def test_load_combines_bytes_and_rate_by_the_weight_setting() -> None:
    world = world_of(tablets=4)
    loads = loads_of(world.image, lambda _, tablet: (tablet + 1) * GIB, partial(rate_of, {3}))
    mean_bytes, mean_rate = 2.5 * GIB, (HOT + 300) / 4
    for weight in (0, 25, 100):
        assert world.apply(SetSetting("tablet_rate_weight", str(weight))) is None
        what = columns(world, loads)
        rates = np.array([100, 100, 100, HOT]) / mean_rate
        part = weight / 100
        expected = (1 - part) * np.arange(1, 5) * GIB + part * rates * mean_bytes
        assert what.state.unit_load == pytest.approx(expected, abs=1)
        counts = f"reads and writes count for {weight} %, bytes for {100 - weight} %"
        assert what.measure.why.endswith(counts if weight else "nodes are known")
        assert what.measure.rate_weight == weight
    idle = loads_of(world.image, size_of, lambda *_: IDLE)
    assert columns(world, idle).measure.rate_weight == 0
    assert world.apply(SetSetting("tablet_balance_by", "count")) is None
    assert (columns(world, loads).state.unit_load == 1).all()


def test_hot_tablet_gets_its_own_node_and_then_nothing_moves() -> None:
    world = world_of()
    world.loads = partial(loads_of, size_of=size_of, rate_of=partial(rate_of, {5}))
    balance(world)
    (alone,) = [numbers for numbers in holds(world).values() if 5 in numbers]
    assert alone == [5]
    others = [len(numbers) for numbers in holds(world).values() if 5 not in numbers]
    assert max(others) - min(others) <= 1


def test_hot_tablets_of_equal_size_are_spread() -> None:
    world = world_of()
    (_, hot), *_ = sorted(holds(world).items())
    hot = hot[:4]
    world.loads = partial(loads_of, size_of=size_of, rate_of=partial(rate_of, {*hot}))
    balance(world)
    assert max(len({*hot} & {*numbers}) for numbers in holds(world).values()) <= 2
    load = columns(world, world.loads(world.image)).state.load.sum(axis=0)
    assert load.max() < 1.1 * load.mean()


def test_reason_of_a_move_names_operations_and_their_rate() -> None:
    world = world_of()
    loads = loads_of(world.image, size_of, partial(rate_of, {5}))
    moves = proposal(world.image, Conditions(loads=loads)).moves
    assert moves and all("of its share of bytes and operations" in m.move.why for m in moves)
    found = tablet_verdicts(world.image, TABLE, 5, Conditions(loads=loads))
    assert isinstance(found, list)
    words = [verdict.reason for verdict in found if verdict.rule == "not_evener"]
    assert words and all("of its share of bytes and operations to" in each for each in words)
    assert all(each.endswith("the tablet serves 8,000 operations a second") for each in words)


class FluctuatingRates:
    """Nodes whose rates differ in every report, like smoothed rates of a steady load."""

    def __init__(self, world: World, hot: set[int], noise: float) -> None:
        self._draw = np.random.default_rng(4)
        self._hot, self._noise = hot, noise
        self._reporting = Reporting(world, size_of, 1.0, self._rate_of)
        self.remembers = True

    def _rate_of(self, table: str, tablet: int) -> Rate:
        part = self._draw.uniform(1 - self._noise, 1 + self._noise)
        return even(round(sum(rate_of(self._hot, table, tablet)) * part))

    def __call__(self, image: Image) -> LoadTable:
        loads = self._reporting(image)
        loads = self._reporting.table = with_heat(image, loads)
        return loads if self.remembers else msgspec.structs.replace(loads, heat=Map())


def at_rest(world: World, seconds: int) -> Counter[tuple[str, int]]:
    """Run for some seconds. Return the moves of tablets meanwhile."""
    before = moves_of(world)
    for _ in range(4 * seconds):
        world.tick()
    return moves_of(world) - before


def test_fluctuating_rates_move_nothing_once_balanced() -> None:
    """Rates fluctuate by a tenth in five hundred reports of each node. Without heat, tablets would move."""
    world = world_of(tablets=128)
    loads = FluctuatingRates(world, {5, 6, 21}, 0.1)
    world.loads = loads
    balance(world)
    assert not at_rest(world, 500)
    loads.remembers = False
    assert at_rest(world, 100)


def test_split_table_counts_with_the_rates_of_its_halves() -> None:
    world = world_of(tablets=8)
    loads = loads_of(world.image, size_of, lambda _, n: Rate(3000, 1000) if n == 2 else IDLE)
    loads = with_heat(world.image, loads)
    assert world.apply(ResizeTable(TABLE, 16)) is None
    world.run()
    state = columns(world, loads).state
    assert state.rate[4:6].tolist() == [3000, 1000]
    assert state.unit_load[4] > state.unit_load[5] > state.unit_load[6]
