"""How large tablets are, and how often they are read and written, as it is told."""

import msgspec


class TabletSize(msgspec.Struct, frozen=True):
    """Bytes of one replica of a tablet, the mean of those that are known, who has it, how often each is read
    and written; None: not known.
    """

    tablet: int
    size_bytes: int
    replicas: tuple[str, ...]
    reads_per_s: int | None = None
    writes_per_s: int | None = None


class TableSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The largest comes first, or the hottest. Of ``known`` tablets the size is known, all together
    ``size_bytes``; of ``counted`` the rate, ``rate`` operations a second of one replica of each. ``wanted`` is
    how many tablets it is to have next, and ``why``.
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
