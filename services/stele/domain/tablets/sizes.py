"""How large tablets are, as it is told."""

import msgspec


class TabletSize(msgspec.Struct, frozen=True):
    """Bytes of one replica of a tablet, the mean of those that are known, and who has it."""

    tablet: int
    size_bytes: int
    replicas: tuple[str, ...]


class TableSizes(msgspec.Struct, frozen=True, kw_only=True):
    """``largest`` comes first; of ``known`` tablets the size is known, all together ``size_bytes``."""

    table: str
    tablets: int
    known: int
    size_bytes: int
    target_bytes: int
    largest: tuple[TabletSize, ...]
