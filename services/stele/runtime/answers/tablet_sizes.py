"""What the tablet-balancer knows of sizes; apart from its other answers, which take numpy to load."""

import msgspec

from stele.domain.tablets.sizes import TableSizes


class SizesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the sizes of a table's tablets, at an epoch."""

    epoch: int
    state_id: str
    sizes: TableSizes
