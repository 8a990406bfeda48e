"""The number of a table's replicas for each node: in proportion to weights, as rules allow."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EPSILON: Final = 1e-7
"""In replicas. Smaller differences are rounding errors."""
PARTS: Final = 1 << 20
"""Parts of a replica in which a surplus is counted. Whole numbers keep sums exact in any order."""


def surplus(count: Ints, weight: Reals) -> Ints:
    """Return by node its replicas beyond its share, summed over all tables, in ``PARTS``.

    ``count`` has shape (tables, nodes). Each table counts as one replica at most, in either
    direction. Sums of all replicas would mislead. Suppose that one node has few large tablets and
    another one many small ones. Each new table of one tablet would then go to the first node.
    """
    share = count.sum(axis=1, keepdims=True) * (weight / weight.sum())
    parts = np.rint(PARTS * np.clip(count - share, -1.0, 1.0))
    found: Ints = parts.sum(axis=0).astype(np.int64)
    return found


def shares(total: float, weight: Reals, node_most: float, rack: Ints, rack_most: Reals) -> Reals:
    """Return each node's share of ``total`` replicas, of shape (nodes,).

    No node gets more than ``node_most``, because a tablet has at most one replica on a node. No
    rack gets more than its ``rack_most``, of shape (racks,). The rest goes to the others. The sum
    is less than ``total`` only when all are full.
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
        ):  # racks first: a rack's limit may be below the sum of its nodes' limits
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
