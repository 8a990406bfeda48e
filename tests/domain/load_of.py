"""Load reports as nodes of an image send them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from stele.domain.balancer.load import LoadTable
from stele.domain.image import Image
from stele.domain.messages import UNKNOWN_RATE, Load, TabletSizes
from stele.domain.tablets.maps import read_from

TOTAL_BYTES = 1 << 40


class Rate(NamedTuple):
    """Operations per second of a tablet: reads by half of its range, and writes, all in the lower half."""

    lower: int = 0
    upper: int = 0
    writes: int = 0


UNCOUNTED = Rate(UNKNOWN_RATE, 0, UNKNOWN_RATE)
IDLE = Rate()


def even(per_s: int) -> Rate:
    """Return a rate with equal reads in both halves."""
    return Rate(per_s // 2, per_s - per_s // 2)


def table_of(
    data_id: str, of: int, sizes: Mapping[int, int], rates: Mapping[int, Rate] | None = None
) -> TabletSizes:
    """Return sizes by tablet number. Rates are unknown if not given; missing tablets are unknown."""
    numbers = tuple(sorted(sizes))
    found = [(rates or {}).get(number, UNCOUNTED) for number in numbers if rates is not None]
    return TabletSizes(
        data_id=data_id,
        tablet_count=of,
        tablets=numbers,
        sizes_bytes=tuple(sizes[number] for number in numbers),
        reads_per_s=tuple(rate.lower + rate.upper for rate in found),
        writes_per_s=tuple(rate.writes for rate in found),
        lower_half_per_s=tuple(max(UNKNOWN_RATE, rate.lower + rate.writes) for rate in found),
    )


def load_of(node_id: str, *tables: TabletSizes, **changes: object) -> Load:
    """Return a report of ``node_id``, whose disk holds only its tablets."""
    used = sum(sum(table.sizes_bytes) for table in tables)
    load = Load(
        node_id=node_id,
        host_id=f"host-{node_id}",
        boot_id="boot-1",
        sequence=1,
        epoch=1,
        at_ms=0,
        disk_total_bytes=TOTAL_BYTES,
        disk_free_bytes=TOTAL_BYTES - used,
        tables=tables,
    )
    return msgspec.structs.replace(load, **changes)


def loads_of(
    image: Image,
    size_of: Callable[[str, int], int],
    rate_of: Callable[[str, int], Rate] = lambda table, tablet: IDLE,
    **free_bytes: int,
) -> LoadTable:
    """Return the reports of all nodes. The functions take the full name of a table and a tablet number."""
    table = LoadTable()
    for node_id, node in image.membership.nodes.items():
        held = (
            table_of(
                data.data_id,
                of,
                {tablet: size_of(data.name, tablet) for tablet in numbers},
                {tablet: rate_of(data.name, tablet) for tablet in numbers},
            )
            for data, of, numbers in read_from(image, node_id)
        )
        load = load_of(node_id, *held, host_id=node.host_id, epoch=image.epoch, log_id=image.log_id)
        if node_id in free_bytes:
            load = msgspec.structs.replace(load, disk_free_bytes=free_bytes[node_id])
        table = table.with_load(load, 0.0)
    return table
