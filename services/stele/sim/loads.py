"""What simulated nodes report of their tablets: tables grow and shrink, and have hot spots that come and go."""

from typing import NamedTuple

from stele.domain.image import Image
from stele.domain.messages import Load, TabletSizes
from stele.domain.tablets.maps import read_from

GIB = 1 << 30
SIZES_GIB = (0, 1, 24, 60)
RATES = (0, 1_000, 6_000, 20_000)
PLACES = 64
"""A hot spot is in one of so many equal ranges of the ring."""
DISK_BYTES = 1_000 * GIB
QUIET_SHARE = 0.1
"""Of a table's rate, what is not in its hot spot."""


class TableLoad(NamedTuple):
    """A table of so many bytes, that serves so many operations a second, most of them in one place."""

    size_bytes: int = 0
    rate: int = 0
    place: int = 0

    @staticmethod
    def of(number: int) -> "TableLoad":
        """Any number says one."""
        number, size = divmod(number, len(SIZES_GIB))
        number, rate = divmod(number, len(RATES))
        return TableLoad(SIZES_GIB[size] * GIB, RATES[rate], number % PLACES)

    def tablet(self, tablet: int, count: int) -> tuple[int, int, int]:
        """Bytes of a tablet of so many, its operations a second, and those in its lower half."""
        quiet = int(self.rate * QUIET_SHARE / count)
        at, hot = self.place / PLACES * count, int(self.rate * (1 - QUIET_SHARE))
        here, lower = int(at) == tablet, at % 1 < 1 / 2
        rate = quiet + hot * here
        return self.size_bytes // count, rate, quiet // 2 + hot * (here and lower)


def load_of(
    image: Image, node_id: str, loads: dict[str, TableLoad], boot: str, sequence: int, at_ms: int
) -> Load | None:
    """What a node reports by what it has read; None while it is no member."""
    node = image.node(node_id)
    if node is None:
        return None
    tables = list[TabletSizes]()
    for data, count, tablets in read_from(image, node_id):
        load = loads.get(data.name, TableLoad())
        rows = [load.tablet(tablet, count) for tablet in tablets]
        tables.append(
            TabletSizes(
                data_id=data.data_id,
                tablet_count=count,
                tablets=tuple(tablets),
                sizes_bytes=tuple(size for size, _, _ in rows),
                reads_per_s=tuple(rate for _, rate, _ in rows),
                writes_per_s=(0,) * len(rows),
                lower_half_per_s=tuple(lower for _, _, lower in rows),
            )
        )
    held = sum(sum(table.sizes_bytes) for table in tables)
    return Load(
        node_id=node_id,
        host_id=node.host_id,
        boot_id=boot,
        sequence=sequence,
        epoch=image.epoch,
        at_ms=at_ms,
        disk_total_bytes=DISK_BYTES,
        disk_free_bytes=max(0, DISK_BYTES - held),
        tables=tuple(tables),
        log_id=image.log_id,
    )
