"""The reported sizes and rates of tablets."""

import msgspec


class TabletSize(msgspec.Struct, frozen=True):
    """The mean bytes of one replica of a tablet, its replicas, and the rates of each.

    A rate of None is unknown.
    """

    tablet: int
    size_bytes: int
    replicas: tuple[str, ...]
    reads_per_s: int | None = None
    writes_per_s: int | None = None


class TableSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The largest or the hottest tablets of a table, in descending order.

    The size of ``known`` tablets is known, in total ``size_bytes``. The rate of ``counted`` tablets
    is known, in total ``rate`` operations per second of one replica of each. ``wanted`` is the next
    number of tablets, and ``why`` its reason.
    """

    table: str
    tablets: int
    known: int
    size_bytes: int
    target_bytes: int
    largest: tuple[TabletSize, ...]
    counted: int = 0
    rate: int = 0
    target_rate: int = 0
    wanted: int = 0
    why: str = ""
