"""How much the rates of tablets count beside their bytes.

A tablet's heat is its rate in parts of the mean over all tablets, so that a day on which all is read twice as
often changes nothing; where the mean is below a least one it is in parts of that, so that a few operations do
not weigh like gigabytes. Rates are never at rest, and must not move tablets for that: a tablet counts with the
heat that it had until it has clearly another one.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from immutables import Map
from msgspec.structs import replace

from stele.domain.balance.state import heat_of
from stele.domain.image import Image
from stele.domain.tablets.groups import told_of_group
from stele.domain.tablets.limits import MINIMAL_RATE
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.maps import maps_of
from stele.domain.tablets.tablet_stats import Reals, TabletStats

STEADY: Final = 1.25
"""So many times more, or less, is clearly another heat: smoothed rates of a steady load waver by less."""
SLIGHT: Final = 0.1
"""Of the mean: what differs by less counts the same."""


def told_of(image: Image, loads: LoadTable) -> dict[str, TabletStats]:
    """What is known of the tablets of all maps that stay, by the data id of the map's owner."""
    found = dict[str, TabletStats]()
    for table, placement in maps_of(image):
        data = image.schema.data_of(table)
        if not data.dropped_version:
            found[data.data_id] = told_of_group(image, loads, table, len(placement))
    return found


def heats(
    stats: Mapping[str, TabletStats], before: Mapping[str, Reals], least_per_s: float
) -> dict[str, Reals]:
    """By data id the heat with which each tablet counts, NaN where its rate is unknown.

    ``before`` are those of the last time; where a table had another number of tablets they say nothing.
    """
    rates = [each.rates for each in stats.values()]
    ends = np.cumsum([len(each) for each in rates])[:-1]
    now = np.split(heat_of(np.concatenate(rates), least_per_s), ends) if rates else []
    pairs = zip(stats, now, strict=True)
    return {data_id: _steady(before.get(data_id), each) for data_id, each in pairs}


def with_heat(image: Image, loads: LoadTable) -> LoadTable:
    """Loads that remember how much rates count by now; once for each new report is enough."""
    least = MINIMAL_RATE.of(image.features.settings)
    return replace(loads, heat=Map(heats(told_of(image, loads), loads.heat, least)))


def _steady(before: Reals | None, now: Reals) -> Reals:
    if before is None or len(before) != len(now):
        return now
    near = np.abs(now - before) <= SLIGHT
    near |= (now <= before * STEADY) & (before <= now * STEADY)
    return np.where(near | np.isnan(now), before, now)
