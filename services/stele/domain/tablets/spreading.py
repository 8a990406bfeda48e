"""Even out the racks of a tablet.

If a rack has two replicas more than another one with room, one of them moves there. This happens
after a node had to be emptied or a tablet has lost a replica. Dcs with a rack list are left out.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from stele.domain.balance.state import NOBODY
from stele.domain.tablets.replica_changes import ReplicaChanges, room_for
from stele.domain.topology.operations.commands import TabletMove


def spread(changes: ReplicaChanges) -> Iterator[TabletMove]:
    """Yield moves from a rack to one with room and at least two fewer replicas of the tablet."""
    state = changes.what.state
    for dc in state.dcs:
        for unit in _uneven(changes, dc).tolist():
            if changes.is_at_its_end():
                return
            if int(state.table[unit]) in state.still:
                continue
            move = _to_an_emptier_rack(changes, dc, unit)
            if move is None:
                changes.passed += 1
            else:
                state.busy[unit] = True
                yield move


def _uneven(changes: ReplicaChanges, dc: str) -> npt.NDArray[np.intp]:
    """Return units with two more replicas in one rack than in another rack that takes tablets."""
    state = changes.what.state
    peak = state.peak[:, state.dcs[dc]]
    free = ~state.racked[state.table, state.dcs[dc]]
    several = np.flatnonzero((peak > 1) & free & ~state.busy)
    nodes = state.node[several]
    rack = np.where(nodes == NOBODY, NOBODY, state.rack[nodes])
    least = peak[several].copy()
    for name in {*changes.racks[dc].values()}:
        here = (rack == state.racks[dc, name]).sum(axis=1)
        np.minimum(least, here, out=least, casting="unsafe")
    return several[peak[several] - least > 1]


def _to_an_emptier_rack(changes: ReplicaChanges, dc: str, unit: int) -> TabletMove | None:
    held = [node for node in changes.what.state.node[unit].tolist() if node != NOBODY]
    here = [node for node in held if changes.dc_of[node] == dc]
    counts = Counter(changes.rack_of[node] for node in here)
    fullest = max(counts.values())
    sources = [at for at in here if counts[changes.rack_of[at]] == fullest and changes.takes[at]]
    free = room_for(changes, dc, held)
    if not free or not sources or fullest - counts[changes.rack_of[free[0]]] < 2:
        return None
    table, tablet = changes.what.tablet(unit)
    part = partial(changes.part, int(changes.what.state.table[unit]))
    source, target = max(sources, key=part), min(free, key=part)
    # A small rack would exceed its share if it got a replica of every tablet.
    if not changes.is_large(dc, changes.rack_of[target]) and part(target)[0] >= part(source)[0]:
        return None
    shard = changes.goes_to(unit, target, [source])
    if shard is None:
        return None
    return TabletMove(
        table=table,
        tablet=tablet,
        of=changes.what.tablets_of(table),
        from_node=changes.what.node_ids[source],
        to_node=changes.what.node_ids[target],
        to_shard=shard,
        why=f"rack {changes.rack_of[source]} has {fullest} of its replicas, and {changes.rack_of[target]} has"
        f" {counts[changes.rack_of[target]]}",
    )
