"""Groups of co-located tables: those that have one tablet map (Scylla's co-located tables).

To the balancer a group is one table, the owner of the map: its tablets have the bytes and rates of all of them.
"""

from collections.abc import Sequence

import numpy as np

from stele.domain.image import Image
from stele.domain.schema.facts import Table, TableOptions
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.tablet_stats import COLUMNS, LOWER, TabletStats


def standing(image: Image, owner: Table) -> list[Table]:
    """The tables of a map that are not being dropped, the owner first."""
    schema = image.schema
    return [t for t in schema.group_of(owner) if not schema.data_of(t).dropped_version]


def combined(options: Sequence[TableOptions]) -> TableOptions:
    """The largest of what is the least, the least of what is the most, and the mean of the sizes that are
    expected, for each table (Scylla's rules). Repairs are as the first one says.
    """
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


def told_of_group(image: Image, loads: LoadTable, owner: Table, count: int) -> TabletStats:
    """What is known of the tablets of a map of ``count``: the sums over its tables."""
    return summed([loads.stats(table.data_id, count) for table in standing(image, owner)])


def summed(tables: Sequence[TabletStats]) -> TabletStats:
    """Of several tables whose tablets stand together. What nobody knows of one of them is new, and counts as
    nothing beside the others; but a group is ``counted`` only when the rates of all its tables are known.
    """
    if len(tables) == 1:
        return tables[0]
    columns = np.stack([each.columns for each in tables])
    known = ~np.isnan(columns)
    counted = np.stack([~np.isnan(each.rates) for each in tables])
    # A half that nobody has counted, of a table whose rate is known, leaves that of all unknown.
    columns[:, LOWER] = np.where(counted, columns[:, LOWER], 0.0)
    known[:, LOWER] = counted
    found = np.full((COLUMNS, columns.shape[2]), np.nan)
    sums = np.where(known, columns, 0.0).sum(axis=0)
    np.copyto(found, sums, where=known.any(axis=0))
    return TabletStats(found, counted=bool(counted.all()))
