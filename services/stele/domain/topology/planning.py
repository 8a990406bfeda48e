"""Plan a new transition beside the open ones, and check that its locks leave it room.

See docs/design.md, rules 37, 38 and 40. A plan leads from the ring at rest to the ring at rest with
this operation alone. That is right while no two locks overlap. This is a theorem about the
strategy, not about this code, so opening checks the result too. The placement of the ring with all
open operations must equal the live rows with all their deltas.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Final

import msgspec

from stele.domain.base import Rejected, Rejection, required
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model import transitions
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import TABLET_MAP
from stele.domain.ring import transition as ring_steps
from stele.domain.ring.placement import Placement, apply
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import (
    WHOLE_RING,
    TransitionPlan,
    equals_at_rest,
    lacks_sources,
    locks_of,
    overlaps,
    prepare,
)
from stele.domain.rules.ring import Ring, ring_now
from stele.domain.topology.live_copies import data_would_be_lost
from stele.domain.topology.operations.base import OwnPlacement, declared_dead, unchanged
from stele.domain.topology.operations.table import OPERATIONS

Locks = Mapping[str, tuple[Range, ...]]
"""Disjoint ranges in ring order, by placement."""

_WHOLE_RING: Final = (WHOLE_RING,)
_NO_RING: Final = Ring({}, {})
_NO_ROOM: Final = TransitionPlan(rows=(), locks=_WHOLE_RING)
"""Plan for a placement whose replication changes: until that is done no operation has room."""


class GroupPlan(msgspec.Struct, frozen=True):
    """The transition that would open, and why it has no room now; no transition if there is no
    plan.

    A ``blocked`` transition reserves no locks: the operations that it waits for may need them.
    """

    transition: Transition | None
    refusal: Rejection | None = None
    blocked: bool = False


def plan_group(image: Image, requests: list[Request]) -> GroupPlan:
    """Plan the transition of these pending requests of one kind, and check its room."""
    try:
        return _planned(image, requests)
    except Rejected as refused:
        return GroupPlan(None, refused.rejection)


def _planned(image: Image, requests: list[Request]) -> GroupPlan:
    """Return the transition, and why it has no room now. Raises Rejected if there is no plan."""
    operation = OPERATIONS[requests[0].kind]
    required(operation.check(image, requests))
    # Plans of tablets alone need no ring, and a ring takes long to compute.
    has_ring = operation.plans is None or operation.is_of_nodes
    now = ring_now(image) if has_ring else _NO_RING
    later = ring_with_open(image, now) if has_ring else now
    subjects = operation.subjects(image, later, requests) if operation.subjects else ()
    after = operation.ring_after(image, now, subjects)
    # The same object without open operations, since each ring computes its placements once.
    at_last = after if later is now else operation.ring_after(image, later, subjects)
    own = operation.own_placement(image, requests[0])
    if own is not None:
        plans = {own.name: _plan_of_own(now, own)}
    elif operation.plans is None:
        plans = _plans(image, now, after)
    else:
        plans = operation.plans(image, requests)
    assert operation.first is not None, f"'{operation.kind}' needs no transition"
    planned = Transition(
        transition_id=requests[0].request_id,
        kind=operation.kind,
        state=operation.first,
        subjects=subjects,
        keyspace_id=requests[0].keyspace_id,
        table_id=requests[0].table_id,
        plans=plans,
    )
    required(_check_receivers(image, planned, requests) or _check_sources(image, planned, requests))
    blocked = operation.blocked(image, planned, requests)
    refused = blocked or _check_locks(image, planned) or _check_outcome(image, at_last, planned)
    return GroupPlan(planned, refused, blocked=blocked is not None)


def ring_with_open(image: Image, ring: Ring) -> Ring:
    """Return ``ring`` after all open transitions that are not going back."""
    for other in image.topology.open():
        if not other.mark:
            ring = OPERATIONS[other.kind].ring_after(image, ring, other.subjects)
    return ring


def locks(transition: Transition) -> Locks:
    """Return the ranges that a transition reserves."""
    return {name: plan.locks for name, plan in transition.plans.items()}


def needs(image: Image, planned: Transition) -> Locks:
    """Return the ranges that must be free for it to open.

    These are its locks. For a keyspace's future separate placement they are also the whole ring of
    each shared placement.
    """
    mine = locks(planned)
    if all(name in image.ring.placements for name in mine):
        return mine
    shared = {n for n in image.ring.placements if not n.startswith(TABLET_MAP)}
    shared -= moving_placements(image)
    return {**mine, **dict.fromkeys(sorted(shared), _WHOLE_RING)}


def moving_placements(image: Image) -> frozenset[str]:
    """Return the separate placements of keyspaces whose replication changes."""
    moving = (t for t in image.topology.open() if t.keyspace_id)
    return frozenset(name for transition in moving for name in transition.plans)


def locks_meet(mine: Locks, theirs: Locks) -> bool:
    return any(overlaps(ranges, theirs[name]) for name, ranges in mine.items() if name in theirs)


def new_placement(
    image: Image, name: str, replication: Mapping[str, int]
) -> tuple[AnyFact, ...] | Rejection:
    """Return the facts of a placement that is created in the present states of the open
    transitions.

    It needs no version, because no request is routed by it yet, and no stream, because it has no
    data. It is rejected if its plans for the open transitions would overlap (docs/design.md, rule
    40).
    """
    base = ring_now(image)
    planned: list[tuple[Transition, TransitionPlan]] = []
    for other in image.topology.open():
        if not other.subjects:
            continue
        after = OPERATIONS[other.kind].ring_after(image, base, other.subjects)
        plan = _plan(base, after, replication)
        # Rows of two open transitions must not overlap (rule 37), in the new placement either.
        for rival, theirs in planned:
            if overlaps(plan.locks, theirs.locks):
                return _locked(rival)
        planned.append((other, plan))
    placement = base.placement(replication)
    for other, plan in planned:
        placement = _as_it_stands(placement, other, plan)
    plans = (transitions.planned(other.transition_id, name, plan) for other, plan in planned)
    return *image.ring.creation(name, placement), *chain.from_iterable(plans)


def _as_it_stands(placement: Placement, other: Transition, plan: TransitionPlan) -> Placement:
    """Return the placement with the rows of a transition's present state.

    A transition that has written its last rows has its tokens in or out of the ring already, so its
    plan is empty.
    """
    delta = OPERATIONS[other.kind].states[other.state].delta
    if delta is None:
        return placement
    change = delta(placement, plan, other.entered_version)
    return apply(placement, change.removed, change.added)


def _plans(image: Image, base: Ring, after: Ring) -> dict[str, TransitionPlan]:
    if after is base:
        return {}
    replications = image.schema.replications().items()
    moving = moving_placements(image)
    return {
        name: _NO_ROOM if name in moving else _plan(base, after, replication)
        for name, replication in replications
    }


def _plan_of_own(ring: Ring, own: OwnPlacement) -> TransitionPlan:
    before, after = ring.placement(own.before), ring.placement(own.after)
    plan = prepare(before, after, ring.tokens.keys(), ring.tokens.keys())
    return msgspec.structs.replace(plan, locks=_WHOLE_RING)


def _plan(base: Ring, after: Ring, replication: Mapping[str, int]) -> TransitionPlan:
    """Return the plan between two rings at rest, with its locks."""
    before = base.placement(replication)
    plan = prepare(before, after.placement(replication), base.tokens.keys(), after.tokens.keys())
    return msgspec.structs.replace(plan, locks=locks_of(plan, before))


def _check_locks(image: Image, planned: Transition) -> Rejection | None:
    mine = needs(image, planned)
    # Open changes of tokens have no locks in a placement that does not exist yet.
    stays = any(name not in image.ring.placements for name in planned.plans)
    for other in image.topology.open():
        if locks_meet(mine, locks(other)) or (stays and _changes_tokens(other)):
            return _locked(other)
    return None


def _changes_tokens(transition: Transition) -> bool:
    """Return whether tokens come or go, including tokens without ranges in any existing placement.

    A new placement may have such ranges.
    """
    comes_or_goes = any(s.tokens and not s.replaced_id for s in transition.subjects)
    return comes_or_goes and OPERATIONS[transition.kind].ring_after is not unchanged


def _check_outcome(image: Image, at_last: Ring, planned: Transition) -> Rejection | None:
    """Check that the placement of ``at_last`` equals the live rows with all deltas.

    ``at_last`` is the ring with all open operations and this one. Tablet maps are not computed from
    the ring, so it suffices that their locks do not overlap (docs/design.md, rule 38).
    """
    if all(name.startswith(TABLET_MAP) for name in planned.plans):
        return None
    replications = image.schema.replications()
    begins_as = dict[str, str]()
    for other in (*image.topology.open(), planned):
        request = image.requests.requests[other.request_ids()[0]]
        own = OPERATIONS[other.kind].own_placement(image, request)
        if own is not None and not other.mark:
            replications[own.name], begins_as[own.name] = own.after, own.begins_as
    for name, replication in replications.items():
        live = image.ring.placement(name if name in image.ring.placements else begins_as[name])
        for other in (*image.topology.open(), planned):
            plan = other.plans.get(name)
            if plan is not None:
                # A marked transition will end with its old rows.
                last = ring_steps.rollback if other.mark else ring_steps.finish
                change = last(live, plan, 0)
                live = apply(live, change.removed, change.added)
        if not equals_at_rest(live, at_last.placement(replication)):
            return Rejection(
                "ranges_locked",
                "The ranges would not come out as if one operation ran after the other.",
                "It waits until the operations under way are done.",
            )
    return None


def _check_receivers(
    image: Image, planned: Transition, requests: list[Request]
) -> Rejection | None:
    """Check that no dead node would take over ranges, because no transition waits for it."""
    dead = image.membership.excluded() | declared_dead(requests)
    rows = planned.rows() if dead else ()
    receiving = sorted({node for row in rows for node in row.receiving()} & dead)
    if not receiving:
        return None
    names, nodes, when = ", ".join(receiving), " ".join(receiving), "first"
    if all(request.removes_node and request.dead_nodes for request in requests):
        nodes, when = f"NODE {nodes}", "at the same time"
    return Rejection(
        "dead_would_receive",
        f"{names} would have to take over ranges, and is declared dead.",
        f"Ask to remove {names} {when}, as in `stele remove {nodes}`; or replace {names} first, which gives no"
        " ranges to other nodes.",
        {"dead": names},
    )


def _check_sources(image: Image, planned: Transition, requests: list[Request]) -> Rejection | None:
    """Check that live nodes have all acknowledged writes, unless the request accepts their loss."""
    dead = image.membership.excluded() | declared_dead(requests)
    if not dead or all(request.force for request in requests):
        return None
    for name, plan in planned.plans.items():
        lost = [
            row for row in plan.rows if not dead.isdisjoint(row.old) and lacks_sources(row, dead)
        ]
        if lost:
            names = sorted({node for row in lost for node in row.old if node in dead})
            ranges = f"{len(lost)} ranges of placement {name}"
            return data_would_be_lost(image, requests[0], ranges, len(lost), names)
    return None


def _locked(other: Transition) -> Rejection:
    return Rejection(
        "ranges_locked",
        f"Request {other.transition_id} ({other.kind}) is moving ranges that this needs too.",
        "It waits until that is done, or cancel one of them.",
        {"request_id": other.transition_id},
    )
