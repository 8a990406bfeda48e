"""What the balancer hears beside the log."""

from collections.abc import Set
from typing import Final, NamedTuple

from stele.domain.tablets.load import NO_LOADS, LoadTable


class Heard(NamedTuple):
    """What the balancer hears beside the log: members that are silent, nodes where moves have failed just now,
    what nodes told of their loads, and tablets, by their table's id, whose repair has failed just now.
    """

    down: Set[str] = frozenset()
    avoided: Set[str] = frozenset()
    loads: LoadTable = NO_LOADS
    resting: Set[tuple[str, int]] = frozenset()

    def shut(self) -> frozenset[str]:
        """Nodes that get nothing now; those whose disks are full are among them."""
        return frozenset(self.down | self.avoided | self.loads.full())


NOTHING_HEARD: Final = Heard()
