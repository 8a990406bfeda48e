"""Load reports as nodes of an image send them."""

from collections.abc import Callable, Mapping

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Load, TabletSizes
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.maps import read_from

TOTAL_BYTES = 1 << 40


def table_of(data_id: str, of: int, sizes: Mapping[int, int]) -> TabletSizes:
    numbers = tuple(sorted(sizes))
    return TabletSizes(
        data_id=data_id,
        tablet_count=of,
        tablets=numbers,
        sizes_bytes=tuple(sizes[number] for number in numbers),
    )


def load_of(node_id: str, *tables: TabletSizes, **changes: object) -> Load:
    """A report of ``node_id``, whose disk is empty but for its tablets."""
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


def loads_of(image: Image, size_of: Callable[[str, int], int], **free_bytes: int) -> LoadTable:
    """What all nodes of an image report when a tablet (full name of its table, number) has such a size."""
    table = LoadTable()
    for node_id, node in image.membership.nodes.items():
        held = (
            table_of(data.data_id, of, {tablet: size_of(data.name, tablet) for tablet in numbers})
            for data, of, numbers in read_from(image, node_id)
        )
        load = load_of(node_id, *held, host_id=node.host_id, epoch=image.epoch, log_id=image.log_id)
        if node_id in free_bytes:
            load = msgspec.structs.replace(load, disk_free_bytes=free_bytes[node_id])
        table = table.with_load(load, 0.0)
    return table
