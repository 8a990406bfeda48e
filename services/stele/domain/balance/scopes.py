"""Which nodes are balanced with one another, and what each one's share is.

A dc is one scope; where every tablet has its replicas in such racks that none can change its rack, or in those
that are listed, each rack is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stele.domain.balance.cluster import BalanceBy, NodeState
from stele.domain.balance.shares import EPSILON, Bools, Ints, Reals, shares
from stele.domain.balance.state import LEAVING, State


@dataclass(frozen=True, slots=True)
class Scope:
    """Nodes (columns) and tables (rows); a table that must keep its racks has a row for each of them.

    ``wanted`` are shares in replicas, ``mask`` the places where a row may be, both (rows, columns);
    ``leaves`` are the columns that must become empty.
    """

    columns: Ints
    table: Ints
    mask: Bools
    wanted: Reals
    leaves: Bools


@dataclass(frozen=True, slots=True)
class Standing:
    """How the nodes of the cluster take part. All of shape (nodes,), ``weight`` of no unit."""

    leaving: Bools
    frozen: Bools
    """Neither give nor get."""
    weight: Reals
    incomplete: Bools
    """Their capacity, or a size of a tablet of theirs, is unknown and needed."""


def standing(state: State, *, draining: bool) -> Standing:
    """``draining``: for moving replicas off those that leave, else for evening out the others."""
    leaving = np.isin(state.state, LEAVING)
    down = state.state == NodeState.DOWN
    weight, incomplete = _weights(state, leaving)
    if draining:
        for dc in range(len(state.dcs)):
            of_dc = (state.dc == dc) & (state.count.sum(axis=0) > 0) & leaving
            down &= (state.dc != dc) | (not of_dc.any())
    frozen = down | incomplete | (leaving & (not draining))
    weight = np.where(leaving | frozen, 0.0, weight)
    return Standing(leaving, frozen, weight, incomplete)


def _weights(state: State, leaving: Bools) -> tuple[Reals, Bools]:
    shards = state.shards.astype(np.float64)
    if state.options.balance_by is BalanceBy.COUNT:
        return shards, np.zeros(len(shards), np.bool_)
    unknown = np.isnan(state.capacity) & ~leaving
    weight = np.where(np.isnan(state.capacity), 0.0, state.capacity)
    for dc in range(len(state.dcs)):
        stays = (state.dc == dc) & ~leaving
        if unknown[stays].all():  # nobody told: shards tell what they can
            weight[stays], unknown[stays] = shards[stays], False
    return weight, unknown | (state.unknown > 0)


def stopped(state: State, dc: int, now: Standing) -> bool:
    """Whether unknown sizes forbid to drain anything in this dc; those of dead nodes do not."""
    counted = (state.dc == dc) & (state.state != NodeState.EXCLUDED) & (state.unknown > 0)
    return bool(counted.any()) and state.options.balance_by is BalanceBy.SIZE


def scopes(state: State, now: Standing) -> Iterator[Scope]:
    """All scopes that hold anything, dc by dc."""
    for dc in range(len(state.dcs)):
        columns = np.flatnonzero((state.dc == dc) & ~now.frozen)
        columns = columns[(now.weight[columns] > 0) | (state.count[:, columns].sum(axis=0) > 0)]
        if len(columns) and (now.weight[columns] > 0).any():
            yield from _of_dc(state, dc, columns, now)


def _of_dc(state: State, dc: int, columns: Ints, now: Standing) -> Iterator[Scope]:
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
    if locked.all():
        for number in range(len(racks)):
            here = rack == number
            rows = np.flatnonzero(in_rack[:, number])
            if len(rows) and filled[number]:
                shape = (len(rows), int(here.sum()))
                mask = np.ones(shape, np.bool_)
                part = wanted[np.ix_(rows, here)]
                yield Scope(columns[here], table[rows], mask, part, leaves[here])
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
    yield Scope(columns, joined, np.concatenate(masks), np.concatenate(parts), leaves)


def _within_racks(in_rack: Reals, units: Ints, weight: Reals, rack: Ints) -> Reals:
    """Shares of tables whose racks keep what they have, of shape (tables, nodes)."""
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


def _rack_most(state: State, dc: int, racks: Ints, now: Standing) -> Reals:
    """How many replicas of each table fit into each rack, of shape (tables, racks)."""
    most = np.repeat(state.rack_room[:, dc, None].astype(np.float64), len(racks), axis=1)
    for number, rack in enumerate(racks):
        frozen = (state.rack == rack) & now.frozen
        most[:, number] -= state.count[:, frozen].sum(axis=1)
    return np.maximum(most, 0.0)


def _wanted(
    state: State,
    dc: int,
    table: Ints,
    held: Ints,
    columns: Ints,
    rack: Ints,
    racks: Ints,
    now: Standing,
) -> Reals:
    units = state.units_in[table, dc]
    most = _rack_most(state, dc, racks, now)[table]
    weight = now.weight[columns]
    known = dict[tuple[float, ...], Reals]()
    rows = list[Reals]()
    for row, total in enumerate(held.sum(axis=1)):
        per_unit = (float(total) / units[row], *(most[row] / units[row]))
        if per_unit not in known:
            limits = np.array(per_unit[1:])
            known[per_unit] = shares(per_unit[0], weight, 1.0, rack, limits)
        rows.append(known[per_unit] * units[row])
    return np.array(rows)
