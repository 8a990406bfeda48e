"""The kinds of operations, one file each."""

from typing import Final

from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import Operation, State
from stele.domain.topology.operations.cleanup import CLEANUP
from stele.domain.topology.operations.drop_keyspace import DROP_KEYSPACE
from stele.domain.topology.operations.drop_table import DROP_TABLE
from stele.domain.topology.operations.enable_features import ENABLE_FEATURES
from stele.domain.topology.operations.exclude import EXCLUDE
from stele.domain.topology.operations.join import JOIN
from stele.domain.topology.operations.keyspace_rf_change import KEYSPACE_RF_CHANGE
from stele.domain.topology.operations.leave import LEAVE
from stele.domain.topology.operations.move import MOVE
from stele.domain.topology.operations.new_cdc_generation import NEW_CDC_GENERATION
from stele.domain.topology.operations.noop_request import NOOP_REQUEST
from stele.domain.topology.operations.quiesce import QUIESCE
from stele.domain.topology.operations.rebuild import REBUILD
from stele.domain.topology.operations.remove import REMOVE
from stele.domain.topology.operations.replace import REPLACE
from stele.domain.topology.operations.table_repair import TABLE_REPAIR
from stele.domain.topology.operations.tablet_migration import TABLET_MIGRATION
from stele.domain.topology.operations.tablet_repair import TABLET_REPAIR
from stele.domain.topology.operations.tablet_resize import TABLET_RESIZE
from stele.domain.topology.operations.tablet_rf_change import TABLET_RF_CHANGE
from stele.domain.topology.operations.truncate import TRUNCATE

__all__ = ["OPERATIONS", "Operation", "State", "excluded_receivers"]

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
        KEYSPACE_RF_CHANGE,
        TABLET_RF_CHANGE,
        TABLET_REPAIR,
        TABLE_REPAIR,
        ENABLE_FEATURES,
        NOOP_REQUEST,
        QUIESCE,
        CLEANUP,
        TRUNCATE,
        NEW_CDC_GENERATION,
    )
}


def excluded_receivers(image: Image, transition: Transition) -> list[str]:
    """Nodes to which reads would move next, and which nobody serves any more, sorted."""
    operation = OPERATIONS[transition.kind]
    excluded = image.membership.excluded()
    state = operation.states[transition.state]
    if not excluded or not state.streams or state.reads_stay:
        return []
    return [node_id for node_id in operation.receivers(transition) if node_id in excluded]
