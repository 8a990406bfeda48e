"""How many replicas of a table each node should have: in proportion to weights, as far as rules allow."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EPSILON: Final = 1e-7
"""Replicas: what differs by less is rounding."""


def shares(total: float, weight: Reals, node_most: float, rack: Ints, rack_most: Reals) -> Reals:
    """Each node's share of ``total`` replicas, of shape (nodes,).

    No node gets more than ``node_most`` (a tablet has one replica on a node), no rack more than its
    ``rack_most``, of shape (racks,); what they cannot take goes to the others. The sum is less than
    ``total`` only when all are full.
    """
    share = np.zeros(len(weight))
    free, done = weight > 0, np.zeros(len(rack_most), np.bool_)
    while True:
        trial = share
        if free.any():
            left = max(0.0, total - share.sum())
            trial = np.where(free, weight * (left / weight[free].sum()), share)
        of_racks = np.bincount(rack, np.minimum(trial, node_most), len(rack_most))
        full = ~done & (of_racks > rack_most + EPSILON)
        for number in np.flatnonzero(
            full
        ):  # racks first: what its nodes may have is less than theirs alone
            of_rack = rack == number
            within = np.where(of_rack, weight, 0.0)
            no_limit = np.full(len(rack_most), np.inf)
            room = float(rack_most[number])
            share[of_rack] = shares(room, within, node_most, rack, no_limit)[of_rack]
            free &= ~of_rack
        done |= full
        over = free & (trial > node_most + EPSILON)
        if not full.any():
            if not over.any():
                return trial
            share[over] = node_most
            free &= ~over
