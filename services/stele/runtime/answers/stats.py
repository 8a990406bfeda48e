"""The answer of metadata-log about what the log is made of."""

import msgspec

from stele.domain.epoch_stats import EpochStats


class StatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the epochs are made of that this call looked at."""

    newest: int
    next_from: int
    """Ask again with ``from`` this to go on; 0: all was looked at."""
    losers: int
    """Records that lost their epoch, of all that this process has read from the topic."""
    strays: int
    """Records of other logs, so too."""
    stats: EpochStats
    begins: int = 0
    """Epochs up to this one are not kept; 0: all are."""
    stores: tuple[str, ...] = ()
    """They may have what is not kept."""
