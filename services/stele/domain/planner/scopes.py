"""Groups of nodes that are balanced with one another, and the share of each node.

A dc is one scope. Each rack is a separate scope if no tablet can change racks, because its racks
are listed or all full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stele.domain.planner.cluster import BalanceBy, NodeRole
from stele.domain.planner.shares import EPSILON, Bools, Ints, Reals, shares
from stele.domain.planner.state import LEAVING, BalanceColumns


@dataclass(frozen=True, slots=True)
class BalanceScope:
    """Nodes (columns) and tables (rows). A table that must keep its racks has a row for each rack.

    ``wanted`` are shares in replicas. ``mask`` are the columns in which a row may be. Both have
    shape (rows, columns). ``leaves`` are the columns that must become empty.
    """

    columns: Ints
    table: Ints
    mask: Bools
    wanted: Reals
    leaves: Bools


@dataclass(frozen=True, slots=True)
class Participation:
    """The participation of the cluster's nodes. All have shape (nodes,); weights have no unit."""

    leaving: Bools
    frozen: Bools
    """Nodes that neither give nor get."""
    weight: Reals
    incomplete: Bools
    """Nodes whose capacity, or the size of one of their tablets, is unknown and needed."""
    estimate: Reals
    """Like ``weight``, but a node of unknown capacity has the mean of its dc for each shard."""


def participation(state: BalanceColumns, *, draining: bool) -> Participation:
    """Return the participation of nodes, for emptying leaving nodes or for balancing.

    ``draining`` selects the former. Nodes of unknown capacity give and get nothing during
    balancing. Leaving nodes can give to them: one node that does not report must not prevent a
    leave.
    """
    leaving = np.isin(state.state, LEAVING)
    down = state.state == NodeRole.DOWN
    estimate, unknown = weights(state)
    incomplete = state.unknown > 0 if by_size(state) else np.zeros(len(leaving), np.bool_)
    incomplete = incomplete if draining else incomplete | unknown
    if draining:
        for dc in range(len(state.dcs)):
            of_dc = (state.dc == dc) & (state.count.sum(axis=0) > 0) & leaving
            # While a node of the dc leaves, nodes that are down may receive, or the others could be
            # overloaded.
            down &= (state.dc != dc) | (not of_dc.any())
    frozen = down | incomplete | (leaving & (not draining))
    weight = np.where(leaving | frozen, 0.0, estimate)
    return Participation(leaving, frozen, weight, incomplete, np.where(unknown, estimate, weight))


def by_size(state: BalanceColumns) -> bool:
    return state.options.balance_by is BalanceBy.SIZE


def weights(state: BalanceColumns) -> tuple[Reals, Bools]:
    """Return the weights and a mask of estimated ones.

    Unknown capacities are estimated by shards.
    """
    shards = state.shards.astype(np.float64)
    if not by_size(state):
        return shards, np.zeros(len(shards), np.bool_)
    leaving = np.isin(state.state, LEAVING)
    unknown = np.isnan(state.capacity) & ~leaving
    weight = np.where(np.isnan(state.capacity), 0.0, state.capacity)
    for dc in range(len(state.dcs)):
        stays = (state.dc == dc) & ~leaving
        if unknown[stays].all():  # only the shards are known
            weight[stays], unknown[stays] = shards[stays], False
        known, lacking = stays & ~unknown, stays & unknown
        if lacking.any():
            weight[lacking] = shards[lacking] * weight[known].sum() / shards[known].sum()
    return weight, unknown


def stopped(state: BalanceColumns, dc: int, now: Participation) -> bool:
    """Return True if unknown sizes prevent draining in this dc. Sizes on dead nodes do not."""
    counted = (state.dc == dc) & (state.state != NodeRole.EXCLUDED) & (state.unknown > 0)
    return bool(counted.any()) and by_size(state)


def scopes(state: BalanceColumns, now: Participation) -> Iterator[BalanceScope]:
    """Yield all scopes that hold anything, dc by dc."""
    for dc in range(len(state.dcs)):
        columns = np.flatnonzero((state.dc == dc) & ~now.frozen)
        columns = columns[(now.weight[columns] > 0) | (state.count[:, columns].sum(axis=0) > 0)]
        if len(columns) and (now.weight[columns] > 0).any():
            yield from _of_dc(state, dc, columns, now)


def _of_dc(
    state: BalanceColumns, dc: int, columns: Ints, now: Participation
) -> Iterator[BalanceScope]:
    held = state.count[:, columns]
    table = np.flatnonzero(held.sum(axis=1))
    if not len(table):
        return
    held = held[table]
    racks, rack = np.unique(state.rack[columns], return_inverse=True)
    wanted = _wanted(state, dc, table, held, columns, rack, racks, now)
    of_rack = (rack[:, None] == np.arange(len(racks))).astype(np.float64)
    in_rack = held @ of_rack
    racked = state.racked[table, dc]
    units = state.units_in[table[racked], dc]
    wanted[racked] = _within_racks(in_rack[racked], units, now.weight[columns], rack)
    filled = (now.weight[columns] @ of_rack) > 0
    whole = np.abs(wanted @ of_rack - in_rack) < EPSILON * 10
    full = np.abs(in_rack - _rack_most(state, dc, racks, now)[table]) < EPSILON * 10
    locked = ((whole & full) | (in_rack == 0) & whole).all(axis=1) if len(racks) > 1 else full[:, 0]
    locked |= racked
    leaves = now.leaving[columns]
    # If no table can change racks, each rack is planned alone.
    if locked.all():
        for number in range(len(racks)):
            here = rack == number
            rows = np.flatnonzero(in_rack[:, number])
            if len(rows) and filled[number]:
                shape = (len(rows), int(here.sum()))
                mask = np.ones(shape, np.bool_)
                part = wanted[np.ix_(rows, here)]
                yield BalanceScope(columns[here], table[rows], mask, part, leaves[here])
        return
    rows = np.flatnonzero(~locked)
    masks = [np.ones((len(rows), len(columns)), np.bool_)]
    parts, tables = [wanted[rows]], [table[rows]]
    for number in range(len(racks)):
        here = np.flatnonzero(locked & (in_rack[:, number] > 0) & filled[number])
        mask = np.broadcast_to(rack == number, (len(here), len(columns)))
        masks.append(mask)
        parts.append(np.where(mask, wanted[here], 0.0))
        tables.append(table[here])
    joined = np.concatenate(tables)
    yield BalanceScope(columns, joined, np.concatenate(masks), np.concatenate(parts), leaves)


def _within_racks(in_rack: Reals, units: Ints, weight: Reals, rack: Ints) -> Reals:
    """Return shares of tables whose racks keep their replicas, of shape (tables, nodes)."""
    found = np.zeros((len(in_rack), len(weight)))
    no_limit = np.full(in_rack.shape[1], np.inf)
    known = dict[tuple[int, float], Reals]()
    for row, number in np.argwhere(in_rack).tolist():
        key = number, float(in_rack[row, number] / units[row])
        if key not in known:
            within = np.where(rack == number, weight, 0.0)
            known[key] = shares(key[1], within, 1.0, rack, no_limit)
        found[row] += known[key] * units[row]
    return found


def _rack_most(state: BalanceColumns, dc: int, racks: Ints, now: Participation) -> Reals:
    """Return the replicas of each table that fit into each rack, of shape (tables, racks)."""
    most = np.repeat(state.rack_room[:, dc, None].astype(np.float64), len(racks), axis=1)
    for number, rack in enumerate(racks):
        frozen = (state.rack == rack) & now.frozen
        most[:, number] -= state.count[:, frozen].sum(axis=1)
    return np.maximum(most, 0.0)


def _wanted(
    state: BalanceColumns,
    dc: int,
    table: Ints,
    held: Ints,
    columns: Ints,
    rack: Ints,
    racks: Ints,
    now: Participation,
) -> Reals:
    units = state.units_in[table, dc][:, None]
    most = _rack_most(state, dc, racks, now)[table]
    per_unit = np.hstack([held.sum(axis=1, keepdims=True), most]) / units
    keys = [*map(tuple, per_unit.tolist())]
    weight = now.weight[columns]
    # Few of thousands of tables differ in what counts.
    known = {
        (total, *limits): shares(total, weight, 1.0, rack, np.array(limits))
        for total, *limits in dict.fromkeys(keys)
    }
    found: Reals = np.array([known[key] for key in keys]) * units
    return found
