"""Migration of a tablet: a replica moves from one node to another while the tablet serves."""

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.base import Rejected, Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.operations import MoveTablets, TabletMove
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.schema import Table
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.placement import WRITES, Placement, shards_of
from stele.domain.ring.ranges import ANY, Range
from stele.domain.ring.transition import TransitionPlan, changing
from stele.domain.rules.requests import each_once, new_request, of_tablet, open_tablets
from stele.domain.rules.schema import accepted_drops, check_balancing, standing_map_owner
from stele.domain.tablets.copies import is_required
from stele.domain.tablets.maps import maps_of, row_of
from stele.domain.tablets.moves import check_move, replicas_after
from stele.domain.topology.operations.base import (
    Operation,
    State,
    gaining_nodes,
    losing_nodes,
    more_dead_after,
    planned_sets,
    receiving_nodes,
    sets_of_both,
)

# Migration of a tablet: a replica moves from one node to another while the tablet serves.
#
# Variants: the tablet gains a replica or loses one, and no other replica moves; or a replica moves
# to another shard of its node (``intranode_migration``).
#
# allow_write_both_read_old -> write_both_read_old -> streaming -> write_both_read_new -> use_new -> cleanup
#   -> end_migration -> (gone)
# failure up to streaming: cleanup_target -> revert_migration -> (gone)
# new replicas of write_both_read_new die: write_both_read_old_fallback_cleanup -> cleanup_target -> ...
#
# An excluded node cannot be a source: the new replica is rebuilt from the others. A tablet has one
# migration at a time (docs/design.md, INV-TABL-2), which locks its row of the tablet map.
# Co-located tables share one map: the move carries the data of all of them, and the request names
# the map's owner.
#
# Source: ScyllaDB, topology-over-raft.md, "Tablet transitions".


Counts = npt.NDArray[np.int64]


class Shards:
    """Chooses shards for replicas in the order of calls. Each choice counts for the next ones.

    The default shard of a replica is the one with the fewest replicas of its table, then of all.
    Replicas are counted, including requested ones, because their sizes are not in the log. A sender
    that knows sizes, such as the balancer, names the shard itself.
    """

    def __init__(self, image: Image) -> None:
        self._image = image
        self._held = dict[tuple[str, str], Counts]()
        """Counts by node and table; the table '' holds the counts of all tables."""

    def choose(self, table: Table, node_id: str, but: int = ANY) -> int:
        """Return the shard of the node for a new replica of this table; it is never ``but``."""
        shards = self._image.membership.nodes[node_id].shards
        if shards == 1:
            return 0
        if (node_id, "") not in self._held:
            self._count(node_id, shards)
        nothing = np.zeros(shards, np.int64)
        of_table = self._held.setdefault((node_id, table.table_id), nothing)
        of_all = self._held[node_id, ""]
        found = min(
            (shard for shard in range(shards) if shard != but),
            key=lambda shard: (of_table[shard], of_all[shard], shard),
        )
        of_table[found] += 1
        of_all[found] += 1
        return found

    def _count(self, node_id: str, shards: int) -> None:
        total = np.zeros(shards, np.int64)
        for table, placement in maps_of(self._image):
            counts = held_by_shard(placement, node_id, shards)
            self._held[node_id, table.table_id] = counts
            total += counts
        self._held[node_id, ""] = total
        for request in self._image.requests.unfinished_by_id.values():
            if request.to_node == node_id and request.to_shard >= 0:
                total[request.to_shard] += 1
                if (node_id, request.table_id) in self._held:
                    self._held[node_id, request.table_id][request.to_shard] += 1


def held_by_shard(placement: Placement, node_id: str, shards: int) -> Counts:
    """Return the number of tablets of a map that each shard of a node receives writes for."""
    number = placement.nodes.numbers.get(node_id)
    found = np.zeros(shards, np.int64)
    if number is None:
        return found
    for chunk in placement.table.chunks:
        where = chunk.rows.values[WRITES] == number
        found += np.bincount(shards_of(chunk.rows)[where], minlength=shards)[:shards]
    return found


MAX_MOVES: Final = 1024
"""Most moves in one command: each makes a request."""
MAX_UNFINISHED: Final = 4096
"""Most unfinished moves of all commands together; a command beyond it is refused."""


def move_tablets(context: Context, command: MoveTablets) -> Decision:
    """Queue the possible moves, each tablet once; refuse the command if none is possible."""
    if len(command.moves) > MAX_MOVES:
        return Rejection(
            "too_many_moves",
            f"{len(command.moves)} tablets are more than {MAX_MOVES}.",
            "Ask for the others once these are under way.",
        )
    image, shards = context.image, Shards(context.image)
    asked = open_tablets(image, lambda request: request.moves_replica)
    if len(asked) > MAX_UNFINISHED:
        return Rejection(
            "too_many_moves",
            f"{len(asked)} tablets move, or wait to.",
            "Ask again once fewer do.",
        )
    actor, alone = context.envelope.actor, len(command.moves) == 1
    drops = accepted_drops(image, actor)

    def request_for(move: TabletMove) -> RequestChanged:
        table = required(standing_map_owner(image, move.table, drops))
        required(_check_alone(move, (table.table_id, move.tablet), asked))
        required(check_move(image, table, move) or _check_balancing(image, actor, table, move))
        return _request(context, table, _placed(image, table, move, shards), alone=alone)

    nothing = Rejection("no_moves", "There is no tablet to move.", "Name at least one.")
    return each_once(command.moves, request_for, asked, nothing)


def _placed(image: Image, table: Table, move: TabletMove, shards: Shards) -> TabletMove:
    """Return the move with the shard of its destination, if it has one."""
    if not move.to_node or move.to_shard != ANY:
        return move
    but = ANY
    if move.from_node == move.to_node:
        placement = image.ring.placements[table.placement]
        but = row_of(placement, move.tablet).shard_of(move.to_node)
    shard = shards.choose(table, move.to_node, but)
    return msgspec.structs.replace(move, to_shard=shard)


def _request(context: Context, table: Table, move: TabletMove, *, alone: bool) -> RequestChanged:
    within = move.from_node == move.to_node
    kind = RequestKind.INTRANODE_MIGRATION if within else RequestKind.TABLET_MIGRATION
    asked = new_request(
        context,
        kind,
        table_id=table.table_id,
        tablet_count=len(context.image.ring.placements[table.placement]),
        from_node=move.from_node,
        to_node=move.to_node,
        to_shard=move.to_shard if move.to_node else ANY,
        force=move.force,
    ).request
    return of_tablet(context, asked, move.tablet, move.why, alone=alone)


def _check_balancing(image: Image, actor: str, table: Table, move: TabletMove) -> Rejection | None:
    """Refuse a balancer's move while balancing is off, unless replication requires the move."""
    if is_required(image, table, move):
        return None
    return check_balancing(image, actor, table, move.from_node)


def _check_alone(
    move: TabletMove, tablet: tuple[str, int], moving: set[tuple[str, int]]
) -> Rejection | None:
    if tablet not in moving:
        return None
    return Rejection(
        "tablet_moves",
        f"Tablet {move.tablet} of {move.table} moves already.",
        "Wait until that is done: `stele requests`; or cancel it.",
    )


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan]:
    """Return the plan of the one row of the tablet map.

    The new replica takes the position of the old one, or follows all others.
    """
    (request,) = requests
    table = image.schema.tables.get(request.table_id)
    if table is None or table.dropped_version:
        raise Rejected("table_dropped", "The table was dropped.", "There is nothing to move.")
    move = TabletMove(
        table=image.schema.full_name(table),
        tablet=request.tablet,
        of=request.tablet_count,
        from_node=request.from_node,
        to_node=request.to_node,
        force=request.force,
        to_shard=request.to_shard,
        beyond=True,  # that was looked at when it was asked for
    )
    required(check_move(image, table, move) or _check_balancing(image, request.actor, table, move))
    row = row_of(image.ring.placements[table.placement], request.tablet)
    onto = {request.to_node: request.to_shard} if request.to_node else {}
    changed = changing(row, replicas_after(row.reads, move), onto)
    return {table.placement: TransitionPlan((changed,), locks=(Range(row.start, row.end),))}


def needed(image: Image, requests: list[Request]) -> list[str]:
    """Return the nodes that receive a replica. The sources are checked when their data is
    requested.
    """
    return [request.to_node for request in requests if request.to_node]


def may_return_after_reads_moved(image: Image, transition: Transition) -> bool:
    """Return whether reads may go back: at least as many of the new replicas are dead as of the
    old.
    """
    return more_dead_after(transition, image.membership.excluded()) >= 0


def touched_sets(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
    """Return ``planned_sets``; after reads have turned back, also those of the undone step.

    Then no quorum may be left that serves reads from the new replicas, because writes no longer
    reach them. Before reads turn back no answers are counted. In every version in use up to that
    state, writes need a quorum of both sides, so either side may serve reads (docs/design.md, rule
    30).
    """
    if transition.state is TransitionState.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP:
        return sets_of_both(transition)
    return planned_sets(image, transition)


_STATE: Final = TransitionState
TABLET_MIGRATION: Final = Operation(
    kind=RequestKind.TABLET_MIGRATION,
    command=MoveTablets,
    ask=move_tablets,
    priority=6,
    needed=needed,
    subjects_work=False,
    ends_by_silence=True,
    plans=plans,
    first=_STATE.ALLOW_WRITE_BOTH_READ_OLD,
    states={
        _STATE.ALLOW_WRITE_BOTH_READ_OLD: State(
            on_success=_STATE.WRITE_BOTH_READ_OLD, on_failure=_STATE.CLEANUP_TARGET
        ),
        _STATE.WRITE_BOTH_READ_OLD: State(
            delta=transition.write_both_read_old,
            on_success=_STATE.STREAMING,
            on_failure=_STATE.CLEANUP_TARGET,
        ),
        _STATE.STREAMING: State(
            streams=True, on_success=_STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.CLEANUP_TARGET
        ),
        _STATE.WRITE_BOTH_READ_NEW: State(
            delta=transition.write_both_read_new,
            on_success=_STATE.USE_NEW,
            on_failure=_STATE.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
            turns_back_if=may_return_after_reads_moved,
            reads_have_moved=True,
        ),
        _STATE.USE_NEW: State(delta=transition.finish, on_success=_STATE.CLEANUP),
        _STATE.CLEANUP: State(cleaned_by=losing_nodes, on_success=_STATE.END_MIGRATION),
        _STATE.END_MIGRATION: State(),
        _STATE.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP: State(
            delta=transition.write_both_read_old, undoing=True, on_success=_STATE.CLEANUP_TARGET
        ),
        _STATE.CLEANUP_TARGET: State(
            delta=transition.rollback,
            cleaned_by=gaining_nodes,
            undoing=True,
            on_success=_STATE.REVERT_MIGRATION,
        ),
        _STATE.REVERT_MIGRATION: State(undoing=True),
    },
    touched=touched_sets,
    receivers=receiving_nodes,
    cleans_up=False,
)


# Migration of a tablet within a node: its replica moves to another shard, while it serves.
#
# The stages are those of a migration between nodes, with shards instead of nodes. The node writes
# to both shards, streams from itself, reads the new shard, then deletes the data of the old one.
# Routers send requests to the same nodes throughout, so no quorum changes. A barrier still
# separates two stages, because writes of an older stage must have ended.


def needed_within(image: Image, requests: list[Request]) -> list[str]:
    """Return the node: no other node has the data of its shard."""
    return [request.to_node for request in requests]


_READ_NEW: Final = TransitionState.WRITE_BOTH_READ_NEW
INTRANODE_MIGRATION: Final = Operation(
    kind=RequestKind.INTRANODE_MIGRATION,
    command=None,
    ask=move_tablets,
    priority=6,
    needed=needed_within,
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
