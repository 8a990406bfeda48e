"""What the balancer hears beside the log."""

from collections.abc import Set
from typing import Final, NamedTuple

from stele.domain.tablets.load import NO_LOADS, LoadTable


class Heard(NamedTuple):
    """What the balancer hears beside the log: members that are silent, nodes where moves have failed just now,
    and what nodes told of their loads.
    """

    down: Set[str] = frozenset()
    avoided: Set[str] = frozenset()
    loads: LoadTable = NO_LOADS

    def shut(self) -> frozenset[str]:
        """Nodes that get nothing now; those whose disks are full are among them."""
        return frozenset(self.down | self.avoided | self.loads.full())


NOTHING_HEARD: Final = Heard()
