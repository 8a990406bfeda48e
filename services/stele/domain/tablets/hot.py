"""The number of tablets by the rate of the hottest one (CockroachDB's load-based splitting).

The rates in smaller maps follow from the present rates. Those in a map of twice as many tablets
follow from the halves that nodes count. A split helps only if the hottest tablet becomes clearly
cooler: a single hot key cannot be split.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from stele.domain.tablets.tablet_stats import Reals, TabletStats

HELPS: Final = 0.75
"""Largest fraction of the hottest tablet's rate after a useful split; a half is ideal."""
STILL_HELPS: Final = 0.9
"""A split is kept while the fraction stays below this, so that shares that fluctuate do not undo
it.
"""
COOL: Final = 0.5
"""Fraction of the target. A merge may begin if its tablets serve no more than that."""


class Hottest(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a table's hottest tablet, at present and at other numbers of tablets.

    ``by_count`` holds the largest rate, in operations per second, in maps of 1, 2, 4 ... tablets up
    to the present one. ``tablet`` is the number of the hottest one now. ``split`` is the largest
    rate after a split, None until nodes have counted it. ``uncounted`` is the number of tablets
    whose rate is not known in full.
    """

    by_count: tuple[float, ...]
    tablet: int
    split: float | None
    uncounted: int = 0

    @property
    def now(self) -> float:
        return self.by_count[-1]

    def known(self) -> tuple[float, ...]:
        """Return the largest rates by powers of two, up to the largest count with known rates."""
        return self.by_count if self.split is None else (*self.by_count, self.split)


def hottest_of(stats: TabletStats) -> Hottest | None:
    """Return None where no rate is known. Tablets of unknown rates count as idle."""
    rates, lower = stats.rates, stats.lower
    if np.isnan(rates).all():
        return None
    uncounted = max(stats.uncounted, int(np.isnan(rates).sum()))
    rates = np.nan_to_num(rates)
    tablet = int(rates.argmax())
    by_count = [level := rates]
    while len(level) > 1:
        # A merged tablet would serve the sum of both rates.
        by_count.append(level := level[::2] + level[1::2])
    return Hottest(
        by_count=tuple(float(each.max()) for each in reversed(by_count)),
        tablet=tablet,
        split=_split(rates, lower),
        uncounted=uncounted,
    )


def _split(rates: Reals, lower: Reals) -> float | None:
    """Return the rate of the hottest half, None if a half that was not counted may exceed it."""
    halves = np.maximum(lower, rates - lower)
    best = float(np.nanmax(halves, initial=0.0))
    # An uncounted half may be as hot as its whole tablet.
    uncounted = float(rates[np.isnan(halves)].max(initial=0.0))
    return None if uncounted > best else best


def enough(by_count: Sequence[float], most: float, helps: float) -> int:
    """Return the fewest tablets that each serve at most ``most``, or beyond which no split helps.

    No split helps if the largest map's hottest tablet still serves more than ``helps`` of their
    hottest one's rate.
    """
    for power, rate in enumerate(by_count):
        if rate <= most or by_count[-1] > helps * rate:
            return 1 << power
    raise AssertionError("the last is always enough: no part of it is more than all of it")


def words(hot: Hottest, target: int) -> str:
    """Describe the rate of the hottest tablet, and why a tablet above the target is not split."""
    found = f"its hottest tablet, {hot.tablet}, serves {hot.now:,.0f} operations a second"
    found += f"; {target:,} are the target"
    if hot.now <= target:
        return found
    if hot.split is None:
        return f"{found}; there are no samples yet of whether a split would help"
    if hot.split > HELPS * hot.now:
        return f"{found}; a split does not help, half of a tablet would serve {hot.split:,.0f}"
    return found
