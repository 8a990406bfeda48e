"""Selection of the pending requests that open now, and exclusion of nodes that requests declare dead.

Requests open by priority, then by age, with room for their locks. Requests of some kinds open in
groups. A request without room queues, and later requests that conflict queue behind it, so none
starves (docs/design.md, rule 39). A group starts only while the nodes that it needs are up.
"""

from collections import defaultdict
from collections.abc import Mapping, Set
from typing import Final

import msgspec

from stele.coordinator.actions import (
    PASSED,
    Action,
    Actions,
    Check,
    CommandAction,
    TimerStart,
    TimerStop,
    failed,
    reject,
)
from stele.coordinator.model import Patience, Prospect, StepContext, Wait
from stele.domain.commands import Rejection
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.topology import ExcludeDead
from stele.domain.model.transitions import Transition
from stele.domain.names import NodeState, RequestKind, WaitKind
from stele.domain.ring.ranges import FirstClaims
from stele.domain.topology.barriers import Blocker, configured_level, missing_replicas
from stele.domain.topology.live_copies import check_loss, described, losses
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.leave import check_exclusion
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import Locks

MOST_AT_ONCE: Final = 128
"""Largest number of openings in a round. Each is planned beside all open transitions: a round of a
thousand would block the log for a second.
"""
_OTHERS: Final = " others that are silent"
"""Suffix of a request's id: the timer of its group's wait for other nodes."""
_COMPANY: Final = " company"
"""Suffix of a request's id: the timer of its wait for other requests beside it."""


class Openings(msgspec.Struct, frozen=True):
    """Groups of request ids to open with the next Advance, and the actions for all other groups."""

    groups: tuple[tuple[str, ...], ...] = ()
    actions: Actions = ()


class _Queue:
    """The groups ahead in the order of service: their locked ranges, and the ranges that they need
    free.
    """

    def __init__(self) -> None:
        self._request_ids = list[str]()
        self._locks = defaultdict[str, FirstClaims](FirstClaims)
        self._needs = defaultdict[str, FirstClaims](FirstClaims)
        """Needs beyond a group's own locks."""

    def first_conflict(self, mine: Locks, want: Locks) -> str:
        """Return the first request that cannot be open beside a group with these locks and needs,
        or "".

        Neither group may lock a range that the other one needs free. Needs include the group's
        locks.
        """
        found = [*_first_claims(self._locks, want), *_first_claims(self._needs, mine)]
        return self._request_ids[min(found)] if found else ""

    def append(self, request_id: str, mine: Locks, want: Locks) -> None:
        place = len(self._request_ids)
        self._request_ids.append(request_id)
        for name, ranges in want.items():
            claims = self._locks if name in mine else self._needs
            claims[name].add(ranges, place)


def _first_claims(claims: Mapping[str, FirstClaims], asked: Locks) -> list[int]:
    found = (claims[name].first(ranges) for name, ranges in asked.items() if name in claims)
    return [place for place in found if place is not None]


def openings(context: StepContext) -> Openings:
    """Return the groups that open now, and the waits and rejections of the others."""
    chosen, actions = list[tuple[str, ...]](), list[Action]()
    earlier = _Queue()
    groups = _groups(context)
    first_planned = dict[RequestKind, str]()
    for group in groups:
        # The remaining groups open in later rounds.
        if len(chosen) >= MOST_AT_ONCE:
            break
        before = first_planned.get(group[0].kind, "")
        if before:
            actions.append(_wait_for_room(_ids(group), None, before))
            continue
        prospect = context.prospect(group)
        planned = prospect.planned
        # A blocked request locks nothing while it waits, so it has no place in the queue.
        if planned.blocked:  # other requests carry it out, so it needs no node
            actions.append(_wait_for_room(_ids(group), planned.refusal, ""))
            continue
        start = startable(context, group)
        actions += start.actions
        late = _unprepared(context, group) if start.passed else None
        if late is not None:
            actions.append(late)
        if not start.passed or late is not None:
            continue
        room = _with_room(context, group, prospect, earlier)
        actions += room.actions
        # The groups behind this one choose their tokens on the ring that it leaves.
        if planned.transition is not None and _chooses_tokens(context, group):
            first_planned[group[0].kind] = group[0].request_id
        company = _awaits_no_peer(context, group, groups)
        actions += company.actions
        if company.passed:
            chosen += room.groups
    return Openings(tuple(chosen), actions)


def _chooses_tokens(context: StepContext, group: list[Request]) -> bool:
    """Return whether the plan chooses tokens, which takes most of its time.

    Only the first group of such a kind that can start is planned in a call. The groups behind it
    wait for it.
    """
    operation, nodes = OPERATIONS[group[0].kind], context.image.membership.nodes
    chooses = operation.grouped and operation.subjects_work
    return chooses and any(not nodes[request.node_id].initial_tokens for request in group)


def _groups(context: StepContext) -> list[list[Request]]:
    """Return groups of pending requests whose dead nodes are excluded, in the order of service.

    Requests of a grouped kind share a group if their nodes can work, or need not work.
    """
    pending = [
        request
        for request in context.image.requests.pending()
        if OPERATIONS[request.kind].states and not to_be_excluded(context.image, request)
    ]
    pending.sort(key=lambda r: (OPERATIONS[r.kind].priority, r.submitted_epoch))
    groups: list[list[Request]] = []
    for request in pending:
        last = groups[-1] if groups else []
        operation = OPERATIONS[request.kind]
        together = (
            operation.grouped
            and bool(last)
            and last[0].kind is request.kind
            and len(last) < context.limits.together(request.kind)
            and all(
                not operation.subjects_work or context.is_up(r.node_id) for r in (request, last[0])
            )
        )
        if together:
            last.append(request)
        else:
            groups.append([request])
    return groups


def _awaits_no_peer(
    context: StepContext, group: list[Request], groups: list[list[Request]]
) -> Check:
    """Check that the group need not wait for a node that has just asked for the same and has sent
    no ack yet.

    That node may join the same transition. A group waits only once, however many more nodes ask
    meanwhile.
    """
    kind, now_s, limit_s = group[0].kind, context.seen.now_s, context.limits.company_s
    operation = OPERATIONS[kind]
    if not operation.grouped or not operation.subjects_work or len(group) >= context.limits.group:
        return PASSED
    others = (r for each in groups if each is not group for r in each if r.kind is kind)
    silent = [r for r in others if not context.is_up(r.node_id)]
    timers = list[TimerStart]()
    for request in silent:
        timers.append(TimerStart(request.request_id))
        if now_s - context.timer_since_s(request.request_id) < limit_s:
            break
    else:
        return Check(True, timers)
    ids = _ids(group)
    own = f"{ids[0]}{_OTHERS}"
    timers.append(TimerStart(own))
    since_s = context.timer_since_s(own)
    if now_s - since_s >= limit_s:
        return Check(True, timers)
    blockers = context.down([r.node_id for r in silent])
    patience = Patience(since_s, limit_s, "", "it starts without them")
    wait = Wait(WaitKind.COMPANY, f"others that {kind} too", blockers, ids, patience)
    return failed(*timers, wait)


def _with_room(
    context: StepContext, group: list[Request], prospect: Prospect, earlier: _Queue
) -> Openings:
    """Return the group's ids if it has room beside all open transitions and every ``earlier``
    group.

    The group then takes its place in ``earlier``, whether it opens or waits. Requests that cannot
    be planned together are planned one by one.
    """
    planned, ids = prospect.planned, _ids(group)
    if planned.blocked:
        return Openings(actions=[_wait_for_room(ids, planned.refusal, "")])
    if planned.transition is not None:
        mine, want = prospect.locks, prospect.needs
        meets = earlier.first_conflict(mine, want)
        # A group without room is queued too: no later request may take its ranges.
        earlier.append(ids[0], mine, want)
        if planned.refusal is None and not meets:
            return Openings((ids,))
        return Openings(actions=[_wait_for_room(ids, planned.refusal, meets)])
    if len(group) > 1:
        alone = [_with_room(context, [r], context.prospect([r]), earlier) for r in group]
        opened = (ids for each in alone for ids in each.groups)
        return Openings(tuple(opened), [action for each in alone for action in each.actions])
    if planned.refusal is not None:
        return Openings(actions=reject_unplanned(context, group[0], planned.refusal))
    return Openings()


def _ids(group: list[Request]) -> tuple[str, ...]:
    return tuple(request.request_id for request in group)


def _wait_for_room(ids: tuple[str, ...], refusal: Rejection | None, earlier: str) -> Wait:
    why = f"request {earlier}, which needs the same ranges, comes first"
    if refusal is not None:
        why, earlier = refusal.message, refusal.details.get("request_id", earlier)
    what = f"room: {why}"
    if refusal is not None and refusal.code == "has_tablets":
        what = f"the balancer to move tablets to other nodes ({refusal.details['tablets']} left)"
    return Wait(WaitKind.ROOM, what, request_ids=ids, other_request=earlier)


# --- the nodes that a group needs


def startable(
    context: StepContext, group: list[Request], given_up: frozenset[str] = frozenset()
) -> Check:
    """Check that every node that the group needs is up: requesters, receivers, and quorums.

    ``given_up`` are nodes that other requests declare dead. They will be excluded, or those
    requests will fail.

    Requests that outlast silence wait without a limit, as do operations on nodes in any case: a
    rejected node could not join again, and tablets that a leaving node has moved away would return
    to it. Other requests are rejected once a node is dead. No request waits for an excluded node or
    one that has left, because it never returns.
    """
    given_up |= declared_dead(group)
    operation, ids = OPERATIONS[group[0].kind], _ids(group)
    needed = context.prospect(group).needed_nodes
    down = context.down([n for n in needed if n not in given_up])
    down = down or context.down(_blocking_nodes(context, group, given_up))
    if not down:
        return Check(True, [TimerStop(i) for i in ids])
    silent, patience, timers = [b.node_id for b in down], None, list[TimerStart]()
    dead = gone = [node_id for node_id in silent if _is_gone(context.image, node_id)]
    if not (gone or operation.is_of_nodes or context.outlasts_silence(operation.kind)):
        timers = [TimerStart(i) for i in ids]
        since_s = min(context.timer_since_s(i) for i in ids)
        dead, patience = context.dead(silent, since_s), context.patience_with_dead(since_s)
    if not dead:
        what = f"dead nodes, to start {group[0].kind}"
        return failed(*timers, Wait(WaitKind.MEMBERS, what, down, ids, patience))
    names, lost = " ".join(dead), losses(context.image, {*dead})
    if gone:
        advice = "Excluded nodes and nodes that have left never return: ask again for other nodes."
    elif lost:
        advice = (
            f"Start them: {described(context.image, lost)} may have acknowledged writes that no"
            " other live node has."
        )
    else:
        advice = (
            f"Start them; or if they are dead for good, `stele exclude {names}`,"
            f" `stele remove {names}`, or replace them."
        )
    refusal = Rejection("dead_nodes", f"Canceled. Dead nodes: {', '.join(dead)}.", advice)
    return failed(*timers, *reject(context, ids, refusal))


def _is_gone(image: Image, node_id: str) -> bool:
    node = image.node(node_id)
    return node is None or node.excluded or node.state is NodeState.LEFT


def _unprepared(context: StepContext, group: list[Request]) -> Wait | None:
    """Return the wait for the nodes that must prepare their storage and have not acknowledged that;
    None without such nodes.
    """
    acks = context.seen.acks.by_node
    for request in group:
        late = [
            Blocker(n, "has not prepared its storage", context.silent_for_s(n))
            for n in sorted(OPERATIONS[request.kind].prepared_by(context.image, request))
            if n not in acks or request.request_id not in acks[n].ack.prepared
        ]
        if late:
            what = f"nodes to prepare their storage for {request.kind}"
            return Wait(WaitKind.PREPARED, what, tuple(late), (request.request_id,))
    return None


def _blocking_nodes(
    context: StepContext, group: list[Request], given_up: frozenset[str]
) -> list[str]:
    """Return the nodes that are down and must receive data, or without which its barrier cannot
    pass.

    Such a barrier would block all transitions. A relaxed level does not count, because all
    transitions would wait until then.
    """
    image = context.image
    down = {b.node_id for b in context.members_down} - given_up
    planned = context.planned(group).transition if down else None
    if planned is None:
        return []
    answer = frozenset(image.membership.nodes) - down - image.membership.excluded() - given_up
    missing = missing_replicas(image, planned, answer, configured_level(image), given_up)
    receiving = OPERATIONS[planned.kind].receiving(image, planned)
    return sorted(missing | (down & {*receiving}))


# --- requests about dead nodes, and requests without a plan


def to_be_excluded(image: Image, request: Request) -> list[str]:
    """Return the nodes that the request declares dead and that are not excluded yet."""
    nodes = image.membership.nodes
    return [
        n
        for n in request.dead_nodes
        if nodes[n].state is not NodeState.LEFT and not nodes[n].excluded
    ]


def reject_unplanned(context: StepContext, request: Request, refusal: Rejection) -> list[Action]:
    """Reject a request that cannot be planned.

    A request about dead nodes is rejected only after two waits. Open transitions without a dead
    node must end, and requests that could be planned with it get time to arrive.
    """
    ids, limit_s = (request.request_id,), context.limits.company_s
    timer = f"{request.request_id}{_COMPANY}"
    since_s = context.timer_since_s(timer)
    excluded = context.image.membership.excluded()
    going = [t for t in context.image.topology.open() if _relieves_dead_node(t, excluded)]
    if request.dead_nodes and going:
        first = going[0].transition_id
        what = f"room: {refusal.message} Request {first} is first."
        return [TimerStart(timer), Wait(WaitKind.ROOM, what, request_ids=ids, other_request=first)]
    operation = OPERATIONS[request.kind]
    removes = operation.grouped and not operation.subjects_work
    if removes and context.seen.now_s - since_s < limit_s:
        patience = Patience(since_s, limit_s, "", "the request is rejected")
        what = f"others to {request.kind} too"
        return [TimerStart(timer), Wait(WaitKind.COMPANY, what, (), ids, patience)]
    return [TimerStart(timer), *reject(context, ids, refusal)]


def _relieves_dead_node(transition: Transition, excluded: Set[str]) -> bool:
    """Return whether it replaces or removes a node, or moves tablets from an excluded node."""
    if OPERATIONS[transition.kind].subjects_work:
        return any(subject.replaced_id for subject in transition.subjects)
    rows = (row for plan in transition.plans.values() for row in plan.rows)
    return bool(transition.subjects) or any(not excluded.isdisjoint(row.leaving()) for row in rows)


# --- exclusion of the nodes that a request declares dead, after they have been silent
#
# Exclusion needs no round, because the present round may wait for these very nodes. If a node still
# sends acks, it is not excluded and the request is rejected. The request is also rejected if it is
# known to be impossible: exclusion is permanent, even if the request fails later (docs/design.md,
# rule 28).


HEARTBEAT_TIMEOUT: Final = "STELE_HEARTBEAT_TIMEOUT_S"
_LISTENING: Final = " down"
"""Suffix of a request's id: the timer of the observation of its dead nodes."""


def exclude(context: StepContext) -> list[Action]:
    """Exclude the nodes that pending requests declare dead, if the requests can then be carried
    out.
    """
    actions = list[Action]()
    for request in context.image.requests.pending():
        declared, ids = to_be_excluded(context.image, request), (request.request_id,)
        refusal = check_exclusion(context.image, request, {*declared})
        if refusal is None:
            ready = _is_ready(context, request, declared)
            actions += ready.actions
            if not ready.passed:
                continue
            # Exclusion is permanent, so the loss of writes is checked before it.
            refusal = check_loss(context.image, request, {*declared})
        if refusal is None:
            actions.append(CommandAction(ExcludeDead(context.term, request.request_id), ids))
        else:
            actions += reject(context, ids, refusal)
    return actions


def _is_ready(context: StepContext, request: Request, declared: list[str]) -> Check:
    """Check that its nodes are down and the request can then be carried out.

    A request that only excludes nodes is also ready when they are excluded already.
    """
    excludes_only = OPERATIONS[request.kind].excludes_only
    if not declared:
        return Check(excludes_only)
    down = _are_down(context, request, declared)
    if not down.passed or excludes_only:
        return down
    planned = _can_be_planned(context, request)
    actions = [*down.actions, *planned.actions]
    if not planned.passed:
        return failed(*actions)
    # The other nodes that it needs are up. Nodes that other requests declare dead are left to
    # those requests.
    start = startable(context, [request], declared_dead(context.image.requests.pending()))
    return Check(start.passed, [*actions, *start.actions])


def _are_down(context: StepContext, request: Request, declared: list[str]) -> Check:
    """Check that the nodes have been silent for long enough while other nodes sent acks.

    A coordinator that receives no acks at all has just started or is cut off. Its observation
    starts again with the first ack.
    """
    ids, down_after_s = (request.request_id,), context.limits.down_after_s
    timer = f"{request.request_id}{_LISTENING}"
    others = [n for n in context.image.membership.taking_part() if n not in declared]
    # Without acks of any node the coordinator itself may be cut off, so silence proves nothing.
    if others and not any(map(context.is_up, others)):
        what = f"a sign of life of {', '.join(others)}"
        return failed(TimerStop(timer), Wait(WaitKind.MEMBERS, what, context.down(others), ids))
    since_s, start = context.timer_since_s(timer), TimerStart(timer)
    waited_s = context.seen.now_s - since_s
    up = [node_id for node_id in declared if context.is_up(node_id)]
    if not up and waited_s > down_after_s:
        return Check(True, [start])
    if not up:
        then = "it counts as dead, and is excluded"
        patience = Patience(since_s, down_after_s, HEARTBEAT_TIMEOUT, then)
        what = f"a sign of life of {', '.join(declared)}"
        return failed(start, Wait(WaitKind.SILENCE, what, (), ids, patience))
    if waited_s <= 2 * down_after_s:
        blockers = tuple(Blocker(n, "is up", context.silent_for_s(n)) for n in up)
        twice, then = f"2 x {HEARTBEAT_TIMEOUT}", "the request is rejected"
        patience = Patience(since_s, 2 * down_after_s, twice, then)
        what = f"{', '.join(up)} to be down"
        return failed(start, Wait(WaitKind.LIVES, what, blockers, ids, patience))
    text = f"{', '.join(up)} is up: it was heard {context.silent_for_s(up[0]):.1f} s ago."
    hint = (
        "A node that works leaves by `stele decommission`. To exclude it, first stop it for good."
    )
    return failed(start, *reject(context, ids, Rejection("is_up", text, hint)))


def _can_be_planned(context: StepContext, request: Request) -> Check:
    """Check that it has a plan with all requests that may go together with it.

    If none of their nodes is down, a plan for this request alone suffices.
    """
    company = [r for r in context.image.requests.pending() if r.kind is request.kind]
    planned = context.planned(company[: context.limits.together(request.kind)])
    others = [n for r in company if r is not request for n in r.dead_nodes]
    # A request alone counts only if the others' nodes could take over its ranges.
    if planned.transition is None and not context.down(others):
        planned = context.planned([request])
    if planned.transition is not None:
        return PASSED
    if planned.refusal is None:
        return failed()
    return failed(*reject_unplanned(context, request, planned.refusal))
