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


# Whole numbers of replicas for fractional shares, so that the fewest replicas have to move.
#
# Each number is its share rounded down or up. The sum of each column is rounded in the same way. The
# numbers that are rounded up get an *extra*. The extras form a flow of least cost from rows to
# columns: an extra where a replica already is saves a move. These numbers always exist. The shares
# themselves are a flow within the same bounds, and whole bounds have whole solutions.


def quotas(share: Reals, held: Ints) -> Ints:
    """Return the replicas that each column should have of each row, of shape (rows, columns).

    Both arguments have that shape. If the columns' shares of a row are equal, the sum of positive
    ``held - quotas`` is the smallest possible. If they differ, shares far nearer to the number
    above get an extra before those nearer to the one below.
    """
    down = np.floor(share + EPSILON).astype(np.int64)
    rest = share - down
    may = rest > EPSILON
    extras = np.rint(share.sum(axis=1)).astype(np.int64) - down.sum(axis=1)
    # An extra on a held replica saves a move. Shares far from a half weigh more, or a small node
    # would stay one replica short (docs/decisions/019-planner.md).
    worth = 1.0 * (may & (held > down)) + 2.0 * (may & (rest > 0.6)) - 2.0 * (may & (rest < 0.4))
    columns = share.sum(axis=0)
    base = down.sum(axis=0)
    least = np.floor(columns + EPSILON).astype(np.int64) - base
    most = np.ceil(columns - EPSILON).astype(np.int64) - base
    chosen = _cheapest(may, worth, extras, columns - base)
    _even_out(chosen, may, worth, least, most)
    return down + chosen


def _cheapest(may: Bools, worth: Reals, extras: Ints, wanted: Reals) -> Bools:
    """Return the extras with the highest worth, row by row.

    Equal ones go to the column that lacks most.
    """
    best = np.where(may, worth, -np.inf).max(axis=1, initial=-np.inf)
    chosen: Bools = may & (worth >= best[:, None])
    done = chosen.sum(axis=1) == extras
    chosen[~done] = False
    want = wanted - chosen.sum(axis=0)
    # Wants differ by no more than twice the number of rows, so worth decides first.
    scale = 4.0 * len(may) + 4.0
    for row in np.flatnonzero(~done):
        order = np.where(may[row], want + worth[row] * scale, -np.inf)
        take = np.argsort(-order, kind="stable")[: extras[row]]
        chosen[row, take] = may[row, take]
        want -= chosen[row]
    return chosen


def _even_out(chosen: Bools, may: Bools, worth: Reals, least: Ints, most: Ints) -> None:
    """Pass extras along cheapest paths from columns with too many to columns with too few.

    One more vertex, the last, is the sink that columns within their bounds give to and take from.

    ``chosen`` is optimal without bounds, and stays so. All paths of one tree of shortest paths use
    edges of cost zero by the tree's distances, and so do these edges backwards.
    """
    count = chosen.sum(axis=0)
    given = np.clip(count, least, most)
    excess = np.append(count - given, given.sum() - count.sum())
    sink = len(count)
    while (excess > 0).any() and (excess < 0).any():
        distance, before, by_row = _tree(excess, chosen, may, worth, given, least, most)
        missing = np.flatnonzero((excess < 0) & np.isfinite(distance))
        if not len(missing):
            return
        for end in missing[np.argsort(distance[missing], kind="stable")].tolist():
            path = [end]
            while before[path[-1]] >= 0:
                path.append(int(before[path[-1]]))
            steps = [(path[at + 1], path[at], int(by_row[path[at]])) for at in range(len(path) - 1)]
            # An earlier path of this tree may have used an edge of this one. The next tree then has
            # another path.
            if excess[path[-1]] <= 0 or not all(
                given[source] < most[source] if target == sink
                else given[target] > least[target] if source == sink
                else chosen[row, source] and not chosen[row, target]
                for source, target, row in steps
            ):  # fmt: skip
                continue
            excess[path[-1]] -= 1
            excess[end] += 1
            for source, target, row in steps:
                if target == sink:
                    given[source] += 1
                elif source == sink:
                    given[target] -= 1
                else:
                    chosen[row, source], chosen[row, target] = False, True


def _tree(
    excess: Ints, chosen: Bools, may: Bools, worth: Reals, given: Ints, least: Ints, most: Ints
) -> tuple[Reals, Ints, Ints]:
    """Return the shortest paths from columns with too many.

    The result has the distance, the previous vertex and the row of each vertex.
    """
    sink = len(given)
    distance = np.where(excess > 0, 0.0, np.inf)
    before = np.full(sink + 1, -1)
    by_row = np.full(sink + 1, -1)
    free = may & ~chosen
    columns = np.arange(sink)
    for _ in range(2 * sink + 2):
        out = np.where(chosen, distance[:-1] + worth, np.inf)
        source = out.argmin(axis=1)
        reach = np.where(free, out.min(axis=1)[:, None] - worth, np.inf)
        row = reach.argmin(axis=0)
        nearer = reach[row, columns] < distance[:-1] - EPSILON
        changed = np.flatnonzero(nearer)
        distance[changed] = reach[row[changed], changed]
        before[changed], by_row[changed] = source[row[changed]], row[changed]
        into = np.where(given < most, distance[:-1], np.inf)
        to_sink = bool(into.min() < distance[sink] - EPSILON)
        if to_sink:
            distance[sink], before[sink] = into.min(), into.argmin()
        outof = (given > least) & (distance[sink] < distance[:-1] - EPSILON)
        distance[:-1][outof] = distance[sink]
        before[:-1][outof] = sink
        if not (nearer.any() or to_sink or outof.any()):
            break
    return distance, before, by_row
