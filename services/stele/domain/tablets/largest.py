"""The largest tablets of a table, by what nodes told of their loads."""

import numpy as np

from stele.domain.base import Rejection
from stele.domain.context import unknown_table
from stele.domain.image import Image
from stele.domain.tablets.limits import TARGET_SIZE
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.maps import row_of
from stele.domain.tablets.sizes import TableSizes, TabletSize


def largest(image: Image, loads: LoadTable, name: str, limit: int) -> TableSizes | Rejection:
    """So many tablets of a table, those of unknown size left out."""
    table = image.schema.table_named(name)
    if table is None or not table.placement:
        return unknown_table(name)
    placement = image.ring.placements[table.placement]
    sizes = loads.told(table.data_id, len(placement)).sizes
    known = np.flatnonzero(~np.isnan(sizes))
    first = known[np.argsort(-sizes[known], kind="stable")][:limit].tolist()
    return TableSizes(
        table=name,
        tablets=len(placement),
        known=len(known),
        size_bytes=int(sizes[known].sum()),
        target_bytes=TARGET_SIZE.of(image.features.settings),
        largest=tuple(TabletSize(n, int(sizes[n]), row_of(placement, n).reads) for n in first),
    )
