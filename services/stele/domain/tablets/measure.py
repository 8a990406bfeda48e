"""The measure of balance: bytes and rates where nodes report them, otherwise counts of replicas."""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from immutables import Map
from msgspec.structs import replace

from stele.domain.balance.cluster import BalanceBy
from stele.domain.balance.state import heat_of
from stele.domain.image import Image
from stele.domain.tablets.groups import summed
from stele.domain.tablets.limits import BALANCE_BY, MINIMAL_RATE, RATE_WEIGHT
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.tablet_stats import Reals, TabletStats

NAMED: Final = 5
"""Largest number of nodes named in a reason."""


class Measure(msgspec.Struct, frozen=True):
    """The measure and its reason.

    By size, ``rate_weight`` percent of a tablet's load are its rate.
    """

    by: BalanceBy
    why: str
    rate_weight: int = 0


def measure_of(image: Image, loads: LoadTable, heats: Mapping[str, Reals]) -> Measure:
    """Return the measure: size if a node that takes tablets has reported and the setting allows it.

    The planner leaves out nodes without a report. A tablet that no node has reported is new or was
    truncated, and counts as empty and idle until one does. ``heats`` are those of the tablets, by
    data id.
    """
    wanted = BALANCE_BY.of(image.features.settings)
    if wanted == BalanceBy.COUNT:
        return Measure(BalanceBy.COUNT, f"{BALANCE_BY.name} is {wanted}")
    going = image.requests.going()
    room = [node_id for node_id in image.membership.holding() if node_id not in going]
    unknown = [node_id for node_id in room if loads.capacity_bytes(node_id) is None]
    named = ", ".join(unknown[:NAMED])
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    if len(unknown) == len(room):
        return Measure(BalanceBy.COUNT, f"no load is known of {named}{more}")
    why, weight = f"the loads of all {len(room)} nodes are known", 0
    if unknown:
        why = f"the loads of {len(room) - len(unknown)} of {len(room)} nodes are known"
        why += f"; {named}{more} did not report, and tablets are not evened out there"
    if any(np.nansum(heat) > 0 for heat in heats.values()):
        weight = RATE_WEIGHT.of(image.features.settings)
    if weight:
        why += f"; reads and writes count for {weight} %, bytes for {100 - weight} %"
    return Measure(BalanceBy.SIZE, why, weight)


# The weight of tablets' rates in comparison with their bytes.
#
# A tablet's heat is its rate divided by the mean over all tablets. A day with twice as many reads
# therefore changes nothing. A least mean applies, so that a few operations do not weigh as much as
# gigabytes.
#
# Rates always fluctuate, and that must not move tablets. A tablet therefore keeps its heat until the
# new one differs clearly.


STEADY: Final = 1.25
"""Factor between two heats that differ clearly. Smoothed rates of a steady load fluctuate by
less.
"""
SLIGHT: Final = 0.1
"""Fraction of the mean. Smaller differences are ignored."""


def told_of(image: Image, loads: LoadTable) -> dict[str, TabletStats]:
    """Return the known values of all maps that are not being dropped, by the owner's data id."""
    placements, groups = image.ring.placements, image.schema.tablet_groups
    counts = {
        table.data_id: len(placements[group.owner.placement])
        for group in groups
        for table in group.tables
    }
    stats = loads.stats_of(counts)
    return {
        group.data.data_id: summed([stats[table.data_id] for table in group.tables])
        for group in groups
    }


def heats(
    stats: Mapping[str, TabletStats], before: Mapping[str, Reals], least_per_s: float
) -> dict[str, Reals]:
    """Return by data id the heat of each tablet, NaN if its rate is unknown.

    ``before`` are the heats of the last time. They are ignored for a table whose number of tablets
    has changed.
    """
    if not stats:
        return {}
    # All maps at once, since a few operations for each of thousands of maps take long.
    all_ = TabletStats(np.concatenate([each.columns for each in stats.values()], axis=1))
    heat, begin, places = heat_of(all_.rates, least_per_s), 0, dict[str, slice]()
    for data_id, each in stats.items():
        end = begin + each.columns.shape[1]
        places[data_id], begin = slice(begin, end), end
    if before:
        earlier = list[Reals]()
        for data_id, place in places.items():
            known = before.get(data_id, heat[:0])
            same = len(known) == place.stop - place.start
            earlier.append(known if same else heat[place])
        heat = _steady(np.concatenate(earlier), heat)
    return {data_id: heat[place] for data_id, place in places.items()}


def with_heat(image: Image, loads: LoadTable) -> LoadTable:
    """Return loads with the present heats. One call for each new report is enough."""
    least = MINIMAL_RATE.of(image.features.settings)
    return replace(loads, heat=Map(heats(told_of(image, loads), loads.heat, least)))


def _steady(before: Reals, now: Reals) -> Reals:
    # In 500 reports with rates that fluctuate by a tenth nothing moves. Without this memory
    # something moves within 100 (docs/decisions/022-rates-count-as-they-were.md).
    near = np.abs(now - before) <= SLIGHT
    near |= (now <= before * STEADY) & (before <= now * STEADY)
    return np.where(near | np.isnan(now), before, now)
