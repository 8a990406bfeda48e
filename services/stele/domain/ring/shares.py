"""How much of a dc each of its nodes should hold: as even as its racks and its nodes allow.

A share is in rings: a node that holds a replica of everything has 1, and the nodes of a dc have ``rf``.
The rules that bend it are those of ``strategy``: never two replicas on one node, one in each rack while
there are as many racks as replicas, and then at least one in each rack.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
Racks = npt.NDArray[np.int32]

ROUNDING: Final = 1e-9


def fair_shares(tokens: npt.NDArray[np.int64], racks: Racks, rf: int) -> Shares:
    """The share of each node by which the largest share for a token is the lowest that can be.

    ``tokens`` is how many each node has, ``racks`` in which rack it stands, numbered from 0 upwards.
    """
    rack_count = int(racks.max()) + 1
    replicas = min(rf, len(tokens))
    fair = np.zeros(len(tokens))
    settled = np.zeros(rack_count, np.bool_)
    while not settled.all():
        free = ~settled[racks]
        fair[free] = _proportional(tokens[free], replicas - int(settled.sum()))
        held = np.bincount(racks, fair, rack_count).astype(np.float64)
        bent = ~settled & _beyond_one(held, rack_count, rf)
        if not bent.any():
            break
        for rack in np.flatnonzero(bent).tolist():
            fair[racks == rack] = _proportional(tokens[racks == rack], 1)
        settled |= bent
    return fair


def _beyond_one(held: Shares, rack_count: int, rf: int) -> npt.NDArray[np.bool_]:
    """The racks that would hold more than one replica of everything, or less, as may not be."""
    if rack_count > rf:
        return held > 1 + ROUNDING
    if rack_count < rf:
        return held < 1 - ROUNDING
    return np.ones(rack_count, np.bool_)


def _proportional(tokens: npt.NDArray[np.int64], replicas: int) -> Shares:
    """Shares as the tokens are, which make up ``replicas``; none is above 1."""
    fair = np.ones(len(tokens))
    free = np.ones(len(tokens), np.bool_)
    while free.any():
        left = replicas - int((~free).sum())
        fair[free] = tokens[free] * (left / int(tokens[free].sum()))
        full = free & (fair > 1 + ROUNDING)
        if not full.any():
            break
        fair[full] = 1
        free &= ~full
    return fair
