"""The kinds of operations, one file each."""

from collections.abc import Set
from typing import Final

from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import Operation, State, more_dead_after, new_replicas
from stele.domain.topology.operations.cleanup import CLEANUP
from stele.domain.topology.operations.drop_keyspace import DROP_KEYSPACE
from stele.domain.topology.operations.drop_table import DROP_TABLE
from stele.domain.topology.operations.enable_features import ENABLE_FEATURES
from stele.domain.topology.operations.exclude import EXCLUDE
from stele.domain.topology.operations.intranode_migration import INTRANODE_MIGRATION
from stele.domain.topology.operations.join import JOIN
from stele.domain.topology.operations.keyspace_rf_change import KEYSPACE_RF_CHANGE
from stele.domain.topology.operations.leave import LEAVE
from stele.domain.topology.operations.move import MOVE
from stele.domain.topology.operations.new_cdc_generation import NEW_CDC_GENERATION
from stele.domain.topology.operations.noop_request import NOOP_REQUEST
from stele.domain.topology.operations.quiesce import QUIESCE
from stele.domain.topology.operations.rebuild import REBUILD
from stele.domain.topology.operations.reconfigure_catch_up import RECONFIGURE_CATCH_UP
from stele.domain.topology.operations.remove import REMOVE
from stele.domain.topology.operations.replace import REPLACE
from stele.domain.topology.operations.table_repair import TABLE_REPAIR
from stele.domain.topology.operations.table_restore import TABLE_RESTORE
from stele.domain.topology.operations.table_snapshot import TABLE_SNAPSHOT
from stele.domain.topology.operations.tablet_migration import TABLET_MIGRATION
from stele.domain.topology.operations.tablet_repair import TABLET_REPAIR
from stele.domain.topology.operations.tablet_resize import TABLET_RESIZE
from stele.domain.topology.operations.tablet_restore import TABLET_RESTORE
from stele.domain.topology.operations.tablet_rf_change import TABLET_RF_CHANGE
from stele.domain.topology.operations.truncate import TRUNCATE

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
    """Whether a transition is undone since these, whom nobody has excluded, are dead. Once reads have moved it
    is when more of the replicas after are dead than of those before.
    """
    state = OPERATIONS[transition.kind].states[transition.state]
    if way_back(image, transition) is None:
        return False
    return (
        state.turns_back_if is None
        or more_dead_after(transition, image.membership.excluded() | dead) > 0
    )


def way_back(image: Image, transition: Transition) -> TransitionState | None:
    """Where a transition goes when it is undone now; None past its point of no return."""
    state = OPERATIONS[transition.kind].states[transition.state]
    if state.turns_back_if is not None and not state.turns_back_if(image, transition):
        return None
    return state.on_failure


def excluded_receivers(image: Image, transition: Transition) -> list[str]:
    """Nodes because of which it goes back, since nobody serves them any more: reads would move to them next, or
    have moved, while more of those that were read before are left.
    """
    operation = OPERATIONS[transition.kind]
    excluded = image.membership.excluded()
    state = operation.states[transition.state]
    if not excluded:
        return []
    if state.turns_back_if is not None:
        more = more_dead_after(transition, excluded) > 0
        return sorted(new_replicas(transition) & excluded) if more else []
    if not state.streams or state.reads_stay:
        return []
    return [node_id for node_id in operation.receiving(image, transition) if node_id in excluded]
