"""The largest or the hottest tablets of a table, by the loads that nodes report."""

import numpy as np

from stele.domain.base import Rejection
from stele.domain.context import unknown_table
from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.heat import told_of
from stele.domain.tablets.limits import TARGET_RATE, TARGET_SIZE
from stele.domain.tablets.maps import row_of
from stele.domain.tablets.resizing import loaded, why_so_many
from stele.domain.tablets.sizes import TableSizes, TabletSize
from stele.domain.tablets.tablet_stats import READS, WRITES, TabletStats


def largest(
    image: Image, conditions: Conditions, name: str, limit: int, *, hottest: bool = False
) -> TableSizes | Rejection:
    """Return at most ``limit`` tablets of a table; those of unknown size, or rate, are left out.

    The wanted number of tablets covers all tables that share the map.
    """
    table, owner = image.schema.table_named(name), image.schema.standing_map_owner(name)
    stats = told_of(image, conditions.loads)
    if table is None or owner is None or owner.data_id not in stats:
        return unknown_table(name)
    placement = image.ring.placements[table.placement]
    of = conditions.loads.stats(table.data_id, len(placement))
    order = of.rates if hottest else of.sizes
    known, counted = (int((~np.isnan(each)).sum()) for each in (of.sizes, of.rates))
    first = np.argsort(-order, kind="stable")[: min(limit, counted if hottest else known)].tolist()
    wanted, why = why_so_many(
        image, loaded(stats), conditions.down, owner.data_id, conditions.loads.full()
    )
    settings = image.features.settings
    return TableSizes(
        table=name,
        tablets=len(placement),
        known=known,
        size_bytes=int(np.nansum(of.sizes)),
        target_bytes=TARGET_SIZE.of(settings),
        largest=tuple(_tablet(of, number, row_of(placement, number)) for number in first),
        counted=counted,
        rate=round(float(np.nansum(of.rates))),
        target_rate=TARGET_RATE.of(settings),
        wanted=wanted,
        why=why,
    )


def _tablet(stats: TabletStats, number: int, row: RangeReplicas) -> TabletSize:
    reads, writes = (stats.columns[column, number] for column in (READS, WRITES))
    return TabletSize(
        tablet=number,
        size_bytes=int(np.nan_to_num(stats.sizes[number])),
        replicas=tuple(map(row.place, row.reads)),
        reads_per_s=None if np.isnan(reads) else round(float(reads)),
        writes_per_s=None if np.isnan(writes) else round(float(writes)),
    )
