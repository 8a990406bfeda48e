"""The answer of metadata-log about the contents of the log."""

import msgspec

from stele.domain.epoch_stats import EpochStats


class StatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the epochs that this call examined."""

    newest: int
    next_from: int
    """``from`` of the next call; 0: all epochs were examined."""
    losers: int
    """Number of records that lost their epoch, among those that this process has read."""
    strays: int
    """Number of records of other logs, counted in the same way."""
    stats: EpochStats
    begins: int = 0
    """Epochs up to this one are not kept; 0: all are kept."""
    stores: tuple[str, ...] = ()
    """Stores that may have epochs that are not kept."""
