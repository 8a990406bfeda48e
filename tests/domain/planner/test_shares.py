"""Shares of a table's replicas: in proportion to weights, within the limits of nodes and racks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.planner.shares import shares


@pytest.mark.parametrize(
    ("weights", "racks", "expected"),
    [
        ([1, 1, 1], [0, 1, 2], [4, 4, 4]),
        ([3, 3, 1, 1], [0, 0, 1, 2], [2, 2, 4, 4]),
        ([3, 1, 1, 1], [0, 0, 1, 2], [3, 1, 4, 4]),
        ([9, 1, 1], [0, 0, 1], [4, 4, 4]),
    ],
)
def test_rack_gets_at_most_one_replica_of_each_tablet(
    weights: list[int], racks: list[int], expected: list[int]
) -> None:
    most = np.full(3, 4.0 if len({*racks}) == 3 else 8.0)
    found = shares(12, np.array(weights, float), 4, np.array(racks), most)
    assert found.tolist() == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=9), st.data())
def test_shares_are_distinct_and_use_all_room(
    nodes: list[tuple[int, int]], data: st.DataObject
) -> None:
    weight = np.array([weight for weight, _ in nodes], float)
    rack = np.array([rack for _, rack in nodes])
    tablets = data.draw(st.integers(1, 20))
    most = np.array(data.draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)), float) * tablets
    total = tablets * data.draw(st.integers(1, 3))
    found = shares(total, weight, tablets, rack, most)
    of_racks = np.bincount(rack, found, 4)
    room = np.minimum(most, np.bincount(rack, np.where(weight > 0, tablets, 0), 4)).sum()
    assert (found <= tablets + 1e-6).all() and (of_racks <= most + 1e-6).all()
    assert found.sum() == pytest.approx(min(total, room), abs=1e-4)
