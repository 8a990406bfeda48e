"""Sizes of tablets. A separate module, because the balancer's other answers import numpy."""

import msgspec

from stele.domain.planner.planned import TableSizes


class SizesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The known sizes of a table's tablets at an epoch."""

    epoch: int
    state_id: str
    sizes: TableSizes
