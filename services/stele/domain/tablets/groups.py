"""Groups of co-located tables, which share one tablet map (Scylla's co-located tables).

The balancer treats a group as one table, the owner of the map. Its tablets have the bytes and rates
of all tables together.
"""

from collections.abc import Sequence

import numpy as np

from stele.domain.image import Image
from stele.domain.schema.model import Table, TableOptions
from stele.domain.tablets.tablet_stats import COLUMNS, LOWER, TabletStats


def standing(image: Image, owner: Table) -> list[Table]:
    """Return the tables of a map that are not being dropped, the owner first."""
    schema = image.schema
    return [t for t in schema.group_of(owner) if not schema.data_of(t).dropped_version]


def combined(options: Sequence[TableOptions]) -> TableOptions:
    """Combine the options of co-located tables (Scylla's rules).

    The largest of the minima counts, the smallest of the maxima, and the mean of the expected sizes
    for each table. Repair options are those of the first table.
    """
    if len(options) == 1:
        return options[0]
    most = [each.max_tablet_count for each in options if each.max_tablet_count]
    sizes = [each.expected_data_size_in_gb for each in options if each.expected_data_size_in_gb]
    return TableOptions(
        min_tablet_count=max(each.min_tablet_count for each in options),
        max_tablet_count=min(most, default=0),
        min_per_shard_tablet_count=max(each.min_per_shard_tablet_count for each in options),
        expected_data_size_in_gb=-(-sum(sizes) * len(options) // max(1, len(sizes))),
        auto_repair_enabled=options[0].auto_repair_enabled,
        auto_repair_threshold=options[0].auto_repair_threshold,
    )


def summed(tables: Sequence[TabletStats]) -> TabletStats:
    """Add up several tables that share a tablet map.

    Unknown sizes and rates of one table count as zero beside the others.
    """
    if len(tables) == 1:
        return tables[0]
    columns = np.stack([each.columns for each in tables])
    known = ~np.isnan(columns)
    counted = np.stack([~np.isnan(each.rates) for each in tables])
    # An uncounted half of a table with a known rate makes the half of the whole group unknown.
    columns[:, LOWER] = np.where(counted, columns[:, LOWER], 0.0)
    known[:, LOWER] = counted
    found = np.full((COLUMNS, columns.shape[2]), np.nan)
    sums = np.where(known, columns, 0.0).sum(axis=0)
    np.copyto(found, sums, where=known.any(axis=0))
    return TabletStats(found, uncounted=int((~counted).any(axis=0).sum()))
