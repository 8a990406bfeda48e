"""Replace: a new node takes the place, the tokens and the data of one that is dead for good.

join_group0 -> write_both_read_old -> write_both_read_new -> finishing -> (normal; the dead one left)
failure before write_both_read_new: left_token_ring -> (left; the dead one as it was, and excluded)
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.membership.facts import NodeChanged
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import check_no_request, new_request
from stele.domain.ring import transition
from stele.domain.ring.locks import disjoint
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.strategy import NodeLocation
from stele.domain.ring.transition import TransitionPlan, TransitionRow, changing
from stele.domain.tablets.maps import maps_of
from stele.domain.topology.facts import Transition
from stele.domain.topology.heads import Subject
from stele.domain.topology.operations.base import (
    Operation,
    State,
    check_dead,
    every_member,
    location_of,
    planned_sets,
)
from stele.domain.topology.operations.commands import Replace
from stele.domain.topology.operations.join import check_newcomer, check_process, newcomer, receivers
from stele.domain.topology.rings import Ring

replace = msgspec.structs.replace


def replace_node(context: Context, command: Replace) -> Decision:
    """Queue the request of a node that stands where a dead one stood."""
    image = context.image
    refused = (
        check_newcomer(image, command)
        or _check_replaced(image, command)
        or check_dead(image, command.ignore_nodes)
        or check_process(image, command, command.replaced_id)
    )
    if refused is not None:
        return refused
    dead = image.membership.nodes[command.replaced_id]
    node = newcomer(context, command, len(dead.tokens))
    request = new_request(
        context,
        RequestKind.REPLACE,
        node_id=node.node_id,
        replaced_id=dead.node_id,
        dead_nodes=tuple(sorted({dead.node_id, *command.ignore_nodes})),
        force=command.force,
    )
    return NodeChanged(node), NodeChanged(replace(dead, request_id=node.request_id)), request


def subjects(image: Image, ring: Ring, requests: list[Request]) -> tuple[Subject, ...]:
    nodes = image.membership.nodes
    return tuple(
        Subject(
            request_id=r.request_id,
            node_id=r.node_id,
            tokens=nodes[r.replaced_id].tokens,
            replaced_id=r.replaced_id,
        )
        for r in requests
    )


def ring_after(image: Image, ring: Ring, replacing: tuple[Subject, ...]) -> Ring:
    for subject in replacing:
        location = location_of(image.membership.nodes[subject.node_id])
        ring = ring.without_node(subject.replaced_id)
        ring = ring.with_node(subject.node_id, location, subject.tokens)
    return ring


def plans_of_tablets(image: Image, replacing: tuple[Subject, ...]) -> dict[str, TransitionPlan]:
    """The new node takes the dead one's place in every tablet that it has."""
    places = {subject.replaced_id: subject.node_id for subject in replacing}
    nodes = image.membership.nodes
    shards = {node_id: cycle(range(nodes[node_id].shards)) for node_id in places.values()}
    found = dict[str, TransitionPlan]()
    for table, placement in maps_of(image):
        rows = tuple(
            _replaced(row, places, shards)
            for row in placement.rows
            if not places.keys().isdisjoint(row.reads)
        )
        if rows:
            locks = disjoint((row.start, row.end) for row in rows)
            found[table.placement] = TransitionPlan(rows, locks=tuple(Range(*at) for at in locks))
    return found


def _replaced(
    row: RangeReplicas, places: Mapping[str, str], shards: Mapping[str, Iterator[int]]
) -> TransitionRow:
    """Its shards take turns, as it has nothing yet: so each has its part of every table."""
    new = tuple(places.get(node, node) for node in row.reads)
    return changing(
        row, new, {n: next(shards[n]) for n in new if n in shards and n not in row.reads}
    )


def on_done(image: Image, replaced: Transition, epoch: int) -> Iterable[AnyFact]:
    """The dead nodes have left."""
    for subject in replaced.subjects:
        node = image.membership.nodes[subject.replaced_id]
        yield NodeChanged(node.gone())


def _check_replaced(image: Image, command: Replace) -> Rejection | None:
    """A node can be replaced once, by one that stands where it stood."""
    refused = check_dead(image, (command.replaced_id,))
    if refused is not None:
        return refused
    dead = image.membership.nodes[command.replaced_id]
    if dead.state is not NodeState.NORMAL:
        return Rejection(
            "wrong_state",
            f"Node '{dead.node_id}' is {dead.state}; only a normal node can be replaced.",
            "Cancel its request, and let the new node join without naming it.",
            {"state": dead.state},
        )
    if command.zero_token == bool(dead.tokens):
        return Rejection(
            "other_tokens",
            f"Node '{dead.node_id}' has {len(dead.tokens)} tokens, and the new one is to have "
            f"{'none' if command.zero_token else 'some'}.",
            "A zero-token node is replaced by a zero-token node, and no other: change its num_tokens.",
            {"tokens": str(len(dead.tokens))},
        )
    if location_of(dead) != NodeLocation(dc=command.dc, rack=command.rack):
        return Rejection(
            "wrong_place",
            f"Node '{dead.node_id}' stands in {dead.dc}/{dead.rack}, not in {command.dc}/{command.rack}.",
            "Start the new node in the same dc and rack; or let it join, and remove the dead one then.",
            {"dc": dead.dc, "rack": dead.rack},
        )
    return check_no_request(image, dead)


_STATE = TransitionState
REPLACE: Final = Operation(
    kind=RequestKind.REPLACE,
    command=Replace,
    ask=replace_node,
    priority=0,
    first=_STATE.JOIN_GROUP0,
    states={
        _STATE.JOIN_GROUP0: State(
            node_state=NodeState.REPLACING,
            on_success=_STATE.WRITE_BOTH_READ_OLD,
            on_failure=_STATE.LEFT_TOKEN_RING,
        ),
        _STATE.WRITE_BOTH_READ_OLD: State(
            delta=transition.write_both_read_old,
            streams=True,
            needs_subjects_up=True,
            on_success=_STATE.WRITE_BOTH_READ_NEW,
            on_failure=_STATE.LEFT_TOKEN_RING,
        ),
        _STATE.WRITE_BOTH_READ_NEW: State(
            delta=transition.write_both_read_new, on_success=_STATE.FINISHING
        ),
        _STATE.FINISHING: State(
            node_state=NodeState.NORMAL, delta=transition.finish, takes_tokens=True
        ),
        _STATE.LEFT_TOKEN_RING: State(delta=transition.rollback, undoing=True),
    },
    done=NodeState.NORMAL,
    undone=NodeState.LEFT,
    rejected=NodeState.LEFT,
    subjects=subjects,
    ring_after=ring_after,
    plans_of_tablets=plans_of_tablets,
    needed=every_member,
    receivers=receivers,
    touched=planned_sets,
    on_done=on_done,
)
