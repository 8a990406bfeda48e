"""The measure of balance: bytes and rates where nodes report them, otherwise counts of replicas."""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from stele.domain.balance.cluster import BalanceBy
from stele.domain.image import Image
from stele.domain.tablets.limits import BALANCE_BY, RATE_WEIGHT
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.tablet_stats import Reals

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
