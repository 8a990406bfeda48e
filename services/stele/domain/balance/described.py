"""Conversion of a cluster's description to columns, and the names behind its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stele.domain.balance.cluster import Cluster, ClusterTable, Tablet
from stele.domain.balance.state import NOBODY, BalanceColumns, ReplicaRates, heat_of


@dataclass(frozen=True, slots=True)
class ClusterColumns:
    """A cluster in columns.

    ``units`` are the tablets of each unit with their tables. ``names`` are those of the units'
    tables.
    """

    state: BalanceColumns
    units: list[list[tuple[ClusterTable, Tablet]]]
    names: list[str]


def described(cluster: Cluster) -> ClusterColumns:
    """Return the columns of a cluster that has been checked."""
    groups = {table.full_name: [table] for table in cluster.tables if not table.colocated_with}
    for table in cluster.tables:
        if table.colocated_with:
            groups[table.colocated_with].append(table)
    numbers = {node.id: at for at, node in enumerate(cluster.nodes)}
    units = list[list[tuple[ClusterTable, Tablet]]]()
    of_table = list[int]()
    for number, tables in enumerate(groups.values()):
        for tablets in zip(*(table.tablets for table in tables), strict=True):
            units.append(list(zip(tables, tablets, strict=True)))
            of_table.append(number)
    width = max((len(unit[0][1].replicas) for unit in units), default=1)
    node = np.full((len(units), width), NOBODY)
    shard = np.zeros((len(units), width), np.int64)
    size, rate = np.empty(len(units)), np.zeros(len(units))
    for at, unit in enumerate(units):
        replicas = unit[0][1].replicas
        for place, (name, on) in enumerate(replicas):
            node[at, place], shard[at, place] = numbers[name], on
        sizes = [tablet.size_bytes for _, tablet in unit]
        # One tablet of unknown size makes the whole unit unknown.
        size[at] = np.nan if None in sizes else sum(filter(None, sizes))
        rate[at] = sum(tablet.rate or 0.0 for _, tablet in unit)
    busy = np.array([any(one.in_transition for _, one in unit) for unit in units], np.bool_)
    state = BalanceColumns(
        list(cluster.nodes),
        len(groups),
        np.array(of_table, np.int64),
        size,
        node,
        shard,
        busy,
        cluster.options,
        ReplicaRates(rate, heat_of(rate, cluster.options.minimal_tablet_rate)),
    )
    for number, tables in enumerate(groups.values()):
        for dc, racks in tables[0].racks.items():
            state.list_racks(number, dc, racks)
    return ClusterColumns(state, units, list(groups))
