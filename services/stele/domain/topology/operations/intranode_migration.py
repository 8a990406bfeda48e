"""Migration of a tablet within a node: its replica there goes from one shard to another, while it serves.

The stages are those of a migration between nodes, and so are their writes and reads, with shards in place of
nodes: the node writes to both, streams from itself, reads the new one, deletes what the old one has. Who routes
requests sends them to the same nodes all the time, so no quorum changes; a barrier still comes between two
stages, since what was written by an older one must be done.
"""

from typing import Final

from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.requests.facts import Request
from stele.domain.topology.operations.base import Operation, receiving_nodes
from stele.domain.topology.operations.tablet_migration import (
    TABLET_MIGRATION,
    move_tablets,
    plans,
    touched_sets,
)


def needed(image: Image, requests: list[Request]) -> list[str]:
    """The node: nobody else has what one of its shards has."""
    return [request.to_node for request in requests]


INTRANODE_MIGRATION: Final = Operation(
    kind=RequestKind.INTRANODE_MIGRATION,
    command=None,
    ask=move_tablets,
    priority=6,
    first=TABLET_MIGRATION.first,
    states=TABLET_MIGRATION.states,
    subjects_work=False,
    needed=needed,
    plans=plans,
    receivers=receiving_nodes,
    touched=touched_sets,
    cleans_up=False,
)
