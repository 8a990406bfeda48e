"""By what tablets are balanced: by bytes when it is known what nodes hold, else by numbers of replicas."""

from typing import Final

import msgspec

from stele.domain.balance.cluster import BalanceBy
from stele.domain.image import Image
from stele.domain.tablets.limits import BALANCE_BY
from stele.domain.tablets.load import LoadTable

NAMED: Final = 5
"""Nodes, in a reason."""


class Measure(msgspec.Struct, frozen=True):
    """By what, and why."""

    by: BalanceBy
    why: str


def measure_of(image: Image, loads: LoadTable) -> Measure:
    """By size once each node with room that stays has said what it holds, unless the setting forbids it.

    A tablet of which nobody told came to its nodes after their reports (it is new, or was truncated): it is no
    reason to wait, and counts as empty until they have.
    """
    wanted = BALANCE_BY.of(image.features.settings)
    if wanted == BalanceBy.COUNT:
        return Measure(BalanceBy.COUNT, f"{BALANCE_BY.name} is {wanted}")
    going = image.requests.going()
    room = [node_id for node_id in image.membership.holding() if node_id not in going]
    unknown = [node_id for node_id in room if loads.capacity_bytes(node_id) is None]
    if unknown:
        named = ", ".join(unknown[:NAMED])
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        return Measure(BalanceBy.COUNT, f"no load is known of {named}{more}")
    return Measure(BalanceBy.SIZE, f"the loads of all {len(room)} nodes are known")
