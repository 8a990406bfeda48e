"""What the balancer goes by beside the log."""

from collections.abc import Set
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stele.domain.tablets.load import NO_LOADS, LoadTable


class Conditions(NamedTuple):
    """What the balancer goes by beside the log: members that are down, nodes where moves have failed just now,
    what nodes reported of their loads, the time in milliseconds since 1970 (0: it has no clock), and tablets,
    by table's id and number, that could not be repaired, or lose a replica, just now.
    """

    down: Set[str] = frozenset()
    avoided: Set[str] = frozenset()
    loads: LoadTable = NO_LOADS
    now_ms: int = 0
    paused: Set[tuple[str, int]] = frozenset()

    def shut(self) -> frozenset[str]:
        """Nodes that get nothing now; those whose disks are full are among them."""
        return frozenset(self.down | self.avoided | self.loads.full())

    def are_paused(self, table_id: str, count: int) -> npt.NDArray[np.bool_]:
        """Of each of a table's tablets whether it is paused."""
        found = np.zeros(count, np.bool_)
        found[[at for id_, at in self.paused if id_ == table_id and at < count]] = True
        return found


NO_CONDITIONS: Final = Conditions()
