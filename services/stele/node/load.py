"""The bytes of this node's tablets, and how often they are read and written, for the agent to tell."""

from collections.abc import Iterable, Sequence
from functools import partial

from stele.agent.load import AddRates, Held, Measure
from stele.agent.partitions import placed
from stele.agent.spans import spans_of
from stele.domain.image import Image
from stele.domain.messages import UNKNOWN_RATE, TabletSizes
from stele.domain.tablets.ranges import range_of
from stele.node import metrics
from stele.node.rates import Rates
from stele.node.store import Store


def measuring(store: Store, node_id: str) -> Measure:
    return partial(measured, store, node_id)


def telling(rates: Rates) -> AddRates:
    return partial(with_rates, rates)


async def measured(
    store: Store, node_id: str, image: Image, held: Sequence[Held]
) -> tuple[TabletSizes, ...]:
    """The bytes of these tablets of a node as they are now."""
    found = list[TabletSizes]()
    for data_id, count, tablets in held:
        ranges = (range_of(count, tablet) for tablet in tablets)
        spans = placed(image, node_id, spans_of([data_id], [*ranges]))
        with metrics.measure_seconds.time():
            sizes = await store.measure_each(spans)
        found.append(
            TabletSizes(
                data_id=data_id,
                tablet_count=count,
                tablets=tablets,
                sizes_bytes=tuple(size.size_bytes for size in sizes),
            )
        )
    return tuple(found)


def with_rates(rates: Rates, tables: Sequence[TabletSizes]) -> tuple[TabletSizes, ...]:
    """What is told, and shown by the metrics."""
    told = rates.told(tables)
    metrics.tablet_bytes.set(sum(sum(table.sizes_bytes) for table in told))
    metrics.tablet_reads.set(known_sum(table.reads_per_s for table in told))
    metrics.tablet_writes.set(known_sum(table.writes_per_s for table in told))
    return told


def known_sum(rates: Iterable[Sequence[int]]) -> int:
    """Of all rates that are known."""
    return sum(rate for of_table in rates for rate in of_table if rate != UNKNOWN_RATE)
