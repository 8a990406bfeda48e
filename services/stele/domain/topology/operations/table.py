"""The table of all operations (docs/design.md, rule 18); related kinds share a module."""

from collections.abc import Set
from typing import Final

from stele.domain.image import Image
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.topology.operations.base import Operation, State, more_dead_after, new_replicas
from stele.domain.topology.operations.global_requests import (
    CLEANUP,
    ENABLE_FEATURES,
    NEW_CDC_GENERATION,
    NOOP_REQUEST,
    QUIESCE,
)
from stele.domain.topology.operations.join import JOIN, REPLACE
from stele.domain.topology.operations.keyspaces import DROP_KEYSPACE, DROP_TABLE, TRUNCATE
from stele.domain.topology.operations.leave import EXCLUDE, LEAVE, REMOVE
from stele.domain.topology.operations.move import MOVE
from stele.domain.topology.operations.rebuild import REBUILD
from stele.domain.topology.operations.reconfigure_catch_up import RECONFIGURE_CATCH_UP
from stele.domain.topology.operations.repairs import TABLE_REPAIR, TABLET_REPAIR
from stele.domain.topology.operations.replication import KEYSPACE_RF_CHANGE, TABLET_RF_CHANGE
from stele.domain.topology.operations.table_snapshots import (
    TABLE_RESTORE,
    TABLE_SNAPSHOT,
    TABLET_RESTORE,
)
from stele.domain.topology.operations.tablet_migration import INTRANODE_MIGRATION, TABLET_MIGRATION
from stele.domain.topology.operations.tablet_resize import TABLET_RESIZE

__all__ = [
    "OPERATIONS",
    "Operation",
    "State",
    "excluded_receivers",
    "goes_back_without",
    "way_back",
]

OPERATIONS: Final[dict[RequestKind, Operation]] = {
    operation.kind: operation
    for operation in (
        REPLACE,
        JOIN,
        REMOVE,
        LEAVE,
        MOVE,
        REBUILD,
        EXCLUDE,
        DROP_KEYSPACE,
        DROP_TABLE,
        TABLET_RESIZE,
        TABLET_MIGRATION,
        INTRANODE_MIGRATION,
        KEYSPACE_RF_CHANGE,
        TABLET_RF_CHANGE,
        TABLET_REPAIR,
        TABLE_REPAIR,
        TABLE_SNAPSHOT,
        TABLE_RESTORE,
        TABLET_RESTORE,
        ENABLE_FEATURES,
        NOOP_REQUEST,
        QUIESCE,
        CLEANUP,
        TRUNCATE,
        NEW_CDC_GENERATION,
        RECONFIGURE_CATCH_UP,
    )
}


def goes_back_without(image: Image, transition: Transition, dead: Set[str]) -> bool:
    """Return whether a transition is undone because the nodes ``dead`` are dead.

    They need not be excluded. After reads have moved, it is undone only if more of the new replicas
    are dead than of the old ones.
    """
    state = OPERATIONS[transition.kind].states[transition.state]
    if way_back(image, transition) is None:
        return False
    return (
        state.turns_back_if is None
        or more_dead_after(transition, image.membership.excluded() | dead) > 0
    )


def way_back(image: Image, transition: Transition) -> TransitionState | None:
    """Return the state to which an undone transition goes now; None past its point of no return."""
    state = OPERATIONS[transition.kind].states[transition.state]
    if state.turns_back_if is not None and not state.turns_back_if(image, transition):
        return None
    return state.on_failure


def excluded_receivers(image: Image, transition: Transition) -> list[str]:
    """Return the excluded nodes that force a transition to go back; they serve no more reads.

    Reads would move to them next. Or reads have moved, and more of the old replicas are left than
    of the new ones.
    """
    operation = OPERATIONS[transition.kind]
    excluded = image.membership.excluded()
    state = operation.states[transition.state]
    if not excluded:
        return []
    if state.turns_back_if is not None:
        # Reads have moved: a way back helps only if it leads to more live replicas.
        more = more_dead_after(transition, excluded) > 0
        return sorted(new_replicas(transition) & excluded) if more else []
    if not state.streams or state.reads_stay:
        return []
    return [node_id for node_id in operation.receiving(image, transition) if node_id in excluded]
