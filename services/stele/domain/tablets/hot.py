"""How many tablets a table is to have by what its hottest one serves (CockroachDB's load-based splitting).

What the tablets of smaller maps would serve follows from the present one, and what those of twice as many would
from the halves that nodes count. A split helps only where the hottest tablet becomes clearly cooler by it: a
single hot key cannot be split away.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from stele.domain.tablets.tablet_stats import Reals, TabletStats

HELPS: Final = 0.75
"""A split helps when the hottest tablet then serves at most so much of what it did; a half is ideal."""
STILL_HELPS: Final = 0.9
"""What is split stays so while it helps that much: shares that waver do not turn it round."""
COOL: Final = 0.5
"""Of the target: a merge whose tablets serve no more may begin."""


class Hottest(msgspec.Struct, frozen=True, kw_only=True):
    """``by_count`` is what the hottest tablet serves, operations a second, in maps of 1, 2, 4 ... tablets up to
    the present one; ``tablet`` is its number now; ``split`` is what the hottest would serve after a split, None
    where nobody has counted that yet. ``complete``: the rates of all tablets are known.
    """

    by_count: tuple[float, ...]
    tablet: int
    split: float | None
    complete: bool

    @property
    def now(self) -> float:
        return self.by_count[-1]

    def known(self) -> tuple[float, ...]:
        """By powers of two, of as many tablets as it can be said of."""
        return self.by_count if self.split is None else (*self.by_count, self.split)


def hottest_of(stats: TabletStats) -> Hottest | None:
    """None where no rate is known. Unknown tablets are taken to be idle."""
    rates, lower = stats.rates, stats.lower
    if np.isnan(rates).all():
        return None
    complete = stats.counted and not np.isnan(rates).any()
    rates = np.nan_to_num(rates)
    tablet = int(rates.argmax())
    by_count = [level := rates]
    while len(level) > 1:
        by_count.append(level := level[::2] + level[1::2])
    return Hottest(
        by_count=tuple(float(each.max()) for each in reversed(by_count)),
        tablet=tablet,
        split=_split(rates, lower),
        complete=complete,
    )


def _split(rates: Reals, lower: Reals) -> float | None:
    """What the hottest half serves, unless one that nobody has counted may serve more."""
    halves = np.maximum(lower, rates - lower)
    best = float(np.nanmax(halves, initial=0.0))
    uncounted = float(rates[np.isnan(halves)].max(initial=0.0))
    return None if uncounted > best else best


def enough(by_count: Sequence[float], most: float, helps: float) -> int:
    """The fewest tablets of which none serves more than ``most``, or with which nothing that is known helps:
    the hottest one of the largest map serves more than ``helps`` of what theirs does.
    """
    for power, rate in enumerate(by_count):
        if rate <= most or by_count[-1] > helps * rate:
            return 1 << power
    raise AssertionError("the last is always enough: no part of it is more than all of it")


def words(hot: Hottest, target: int) -> str:
    """What the hottest tablet serves, and why it is not split though that is too much."""
    found = f"its hottest tablet, {hot.tablet}, serves {hot.now:,.0f} operations a second"
    found += f"; {target:,} are the target"
    if hot.now <= target:
        return found
    if hot.split is None:
        return f"{found}; nobody has counted yet whether a split would help"
    if hot.split > HELPS * hot.now:
        return f"{found}; a split does not help, half of a tablet would serve {hot.split:,.0f}"
    return found
