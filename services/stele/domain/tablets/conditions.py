"""The balancer's inputs besides the log."""

from collections.abc import Set
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stele.domain.tablets.load import NO_LOADS, LoadTable


class Conditions(NamedTuple):
    """The balancer's inputs besides the log.

    ``down`` are members that are down. ``avoided`` are nodes to which moves have just failed;
    ``failing`` are those from which moves have just failed, and these neither give nor get.
    ``loads`` are the nodes' reports. ``now_ms`` is the time in milliseconds since 1970, 0 without a
    clock. ``paused`` are tablets, by table id and number, whose repair or loss of a replica has
    just failed.
    """

    down: Set[str] = frozenset()
    avoided: Set[str] = frozenset()
    loads: LoadTable = NO_LOADS
    now_ms: int = 0
    paused: Set[tuple[str, int]] = frozenset()
    failing: Set[str] = frozenset()

    def shut(self) -> frozenset[str]:
        """Return the nodes that receive nothing now, including those with full disks."""
        return frozenset(self.down | self.avoided | self.failing | self.loads.full())

    def are_paused(self, table_id: str, count: int) -> npt.NDArray[np.bool_]:
        """Return the mask of a table's tablets that are paused."""
        found = np.zeros(count, np.bool_)
        found[[at for id_, at in self.paused if id_ == table_id and at < count]] = True
        return found


NO_CONDITIONS: Final = Conditions()
