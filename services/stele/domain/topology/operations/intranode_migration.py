"""Migration of a tablet within a node: its replica moves to another shard, while it serves.

The stages are those of a migration between nodes, with shards instead of nodes. The node writes to
both shards, streams from itself, reads the new shard, then deletes the data of the old one. Routers
send requests to the same nodes throughout, so no quorum changes. A barrier still separates two
stages, because writes of an older stage must have ended.
"""

from typing import Final

import msgspec

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.names import RequestKind, TransitionState
from stele.domain.topology.operations.base import Operation, receiving_nodes
from stele.domain.topology.operations.tablet_migration import (
    TABLET_MIGRATION,
    move_tablets,
    plans,
    touched_sets,
)


def needed(image: Image, requests: list[Request]) -> list[str]:
    """Return the node: no other node has the data of its shard."""
    return [request.to_node for request in requests]


_READ_NEW: Final = TransitionState.WRITE_BOTH_READ_NEW
INTRANODE_MIGRATION: Final = Operation(
    kind=RequestKind.INTRANODE_MIGRATION,
    command=None,
    ask=move_tablets,
    priority=6,
    needed=needed,
    subjects_work=False,
    ends_by_silence=True,
    plans=plans,
    first=TABLET_MIGRATION.first,
    states={
        **TABLET_MIGRATION.states,
        _READ_NEW: msgspec.structs.replace(
            TABLET_MIGRATION.states[_READ_NEW], reads_have_moved=False
        ),
    },
    touched=touched_sets,
    receivers=receiving_nodes,
    cleans_up=False,
)
