"""The effect of an operation's command, computed on an image and not written.

The command is decided as the metadata-log decides it, and its request is planned as an opening
plans it. Callers add what an image does not hold: which nodes are up, and how much data there is.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stele.domain.base import Rejection
from stele.domain.commands import Envelope
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import TransitionState
from stele.domain.ring.ranges import RING_SIZE, RangeReplicas, distance, held_tokens
from stele.domain.ring.transition import TransitionPlan, TransitionRow, lacks_sources
from stele.domain.topology.live_copies import (
    check_loss,
    described,
    losses,
    only_have,
    short_of_quorum,
)
from stele.domain.topology.operations.base import declared_dead
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import plan_group

# Warnings before an operation that no rule forbids.


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """A warning: its code, its message, and the share of the ring that it concerns, 0 to 1."""

    code: str
    placement: str
    share: float
    message: str


def concerns_of(
    image: Image, transition: Transition, requests: Sequence[Request], dead: frozenset[str]
) -> tuple[Concern, ...]:
    """Return the warnings by placement: copies on fewer racks, fewer copies than wanted, or lost
    writes.
    """
    force = all(request.force for request in requests)
    return tuple(
        concern
        for name, plan in sorted(transition.plans.items())
        for concern in _concerns(image, name, plan.rows, dead, force=force)
    )


def _concerns(
    image: Image, name: str, rows: Iterable[TransitionRow], dead: frozenset[str], *, force: bool
) -> Iterator[Concern]:
    wanted = sum(image.schema.replications().get(name, {}).values())
    crowded = [r for r in rows if len(_racks(image, r.new)) < len(_racks(image, r.old))]
    short = [row for row in rows if len(row.new) < wanted]
    lost = [row for row in rows if force and lacks_sources(row, dead)]
    if crowded:
        yield Concern(
            code="fewer_racks",
            placement=name,
            share=share_of(crowded),
            message="The copies are on fewer racks than before.",
        )
    if short:
        yield Concern(
            code="too_few_copies",
            placement=name,
            share=share_of(short),
            message=f"Fewer than the {wanted} copies that the replication factor asks for.",
        )
    if lost:
        names = only_have(sorted({n for row in lost for n in row.old if n in dead}))
        yield Concern(
            code="data_may_be_lost",
            placement=name,
            share=share_of(lost),
            message=f"Acknowledged writes that only {names} are given up, by force.",
        )


def exclusion_concerns(
    image: Image, requests: Sequence[Request], excludes: Sequence[str]
) -> tuple[Concern, ...]:
    """Return warnings for ranges that the requests leave without a quorum or without some writes.

    ``excludes`` are the nodes that they declare dead. A node that they remove or replace may have
    been excluded before, and its tablets may still have writes that no live node has.
    """
    chosen, excluded = frozenset(excludes), image.membership.excluded() | frozenset(excludes)
    gone = {request.replaced_id or request.node_id for request in requests}
    lost = losses(image, chosen | (gone & declared_dead(requests)))
    short = short_of_quorum(image, excluded) if excludes else ()
    names = {each.placement for each in lost}
    return (
        *(
            Concern(
                code="data_may_be_lost",
                placement=each.placement,
                share=share_of(each.rows),
                message=f"{described(image, (each,))} may have acknowledged writes that only"
                f" {only_have(sorted(each.dead(excluded)))}.",
            )
            for each in lost
        ),
        *(
            Concern(
                code="no_quorum",
                placement=each.placement,
                share=share_of(each.rows),
                message=f"{described(image, (each,))} cannot be read or written at quorum until"
                f" {', '.join(sorted(each.dead(excluded)))} is replaced or removed.",
            )
            for each in short
            if each.placement not in names and not chosen.isdisjoint(each.dead(excluded))
        ),
    )


def _racks(image: Image, replicas: tuple[str, ...]) -> set[tuple[str, str]]:
    nodes = (image.membership.nodes[node_id] for node_id in replicas)
    return {(node.dc, node.rack) for node in nodes}


def share_of(rows: Iterable[TransitionRow | RangeReplicas]) -> float:
    """Return the share of these ranges in the ring, 0 to 1."""
    return sum(distance(row.start, row.end) for row in rows) / RING_SIZE


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A state that the operation passes. After the last one that can be undone it only goes
    forward.
    """

    state: TransitionState
    streams: bool
    can_be_undone: bool


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of a placement that a node takes over, ``share`` of the ring, from ``needed`` of
    ``sources``.
    """

    node_id: str
    placement: str
    ranges: int
    share: float
    sources: tuple[str, ...]
    needed: int


class Share(msgspec.Struct, frozen=True):
    """Copies of the ring that are held before and after; 1.0 is the whole ring once."""

    before: float
    after: float


class PlannedPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Changes in a placement: the number of changing ranges, and copies by node and by dc/rack."""

    placement: str
    keyspaces: tuple[str, ...]
    ranges: int
    changing: int
    changing_share: float
    nodes: dict[str, Share]
    racks: dict[str, Share]


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a command. ``refusal`` is the reason why it has no plan, or no room now.

    ``together`` are the requests that share one operation with the first one. ``alone``: no other
    request is open or pending, so this plan will be executed. Otherwise it is planned again when it
    opens.
    """

    request: Request
    alone: bool
    together: tuple[Request, ...] = ()
    tokens: dict[str, int] = {}
    """Number of tokens that the operation's nodes will have, or had."""
    excludes: tuple[str, ...] = ()
    steps: tuple[PlannedStep, ...] = ()
    receivers: tuple[str, ...] = ()
    gains: tuple[Gain, ...] = ()
    placements: tuple[PlannedPlacement, ...] = ()
    concerns: tuple[Concern, ...] = ()
    foreseen: tuple[str, ...] = ()
    """Work of other services for it, such as moves by the balancer."""
    has_plan: bool = True
    refusal: Rejection | None = None

    def requests(self) -> tuple[Request, ...]:
        return self.request, *self.together


class Asked(msgspec.Struct, frozen=True):
    """An image in which the requests of some commands are pending."""

    image: Image
    requests: tuple[Request, ...]


def asked(image: Image, envelopes: Sequence[Envelope], at_ms: int) -> Asked | Rejection:
    """Return the image after these commands, or the refusal of one of them.

    Several commands must be for operations that open together.
    """
    found = Asked(image, ())
    for envelope in envelopes:
        each = _asked(found.image, envelope, at_ms)
        if isinstance(each, Rejection):
            return each
        found = Asked(each.image, found.requests + each.requests)
    kinds = {request.kind for request in found.requests}
    if len(found.requests) > 1 and (len(kinds) > 1 or not OPERATIONS[min(kinds)].grouped):
        return Rejection(
            "not_together",
            f"{' and '.join(sorted(kinds))} of several nodes do not go together as one operation.",
            "Plan each by itself.",
        )
    return found


def _asked(image: Image, envelope: Envelope, at_ms: int) -> Asked | Rejection:
    decision = decide(image, envelope, at_ms)
    if isinstance(decision, Rejection):
        return decision
    after = apply_facts(image, decision)
    request = after.request(envelope.request_id)
    if request is None:
        return Rejection(
            "nothing_to_plan",
            "The command is done by the epoch that decides it, and moves nothing.",
            "Send it: there is nothing to wait for.",
        )
    return Asked(after, (request,))


def preflight(before: Image, pending: Asked) -> Preflight:
    """Return the effect of the requests as one operation, beside all that is open in ``before``."""
    image, (request, *together) = pending.image, pending.requests
    alone = not before.topology.transitions and not before.requests.unfinished()
    dead = [image.membership.nodes[n] for n in sorted(declared_dead(pending.requests))]
    found = Preflight(
        request=request,
        together=tuple(together),
        alone=alone,
        excludes=tuple(node.node_id for node in dead if not node.excluded),
    )
    # A request without a first state has no transition and therefore no plan.
    moves = OPERATIONS[request.kind].first is not None
    planned = plan_group(image, [*pending.requests]) if moves else None
    lost = None if planned is not None and planned.transition is None else _lost(image, pending)
    if lost is not None:
        return msgspec.structs.replace(found, has_plan=False, refusal=lost)
    if planned is None:
        foreseen = OPERATIONS[request.kind].foreseen(image, request)
        concerns = exclusion_concerns(image, pending.requests, found.excludes)
        return msgspec.structs.replace(found, foreseen=foreseen, concerns=concerns)
    if planned.transition is None:
        return msgspec.structs.replace(found, has_plan=False, refusal=planned.refusal)
    return _described(found, image, planned.transition, planned.refusal)


def _lost(image: Image, pending: Asked) -> Rejection | None:
    """Return why the dead nodes of a request would not be excluded."""
    excluded = image.membership.excluded()
    refusals = (check_loss(image, r, {*r.dead_nodes} - excluded) for r in pending.requests)
    return next(filter(None, refusals), None)


def _described(
    found: Preflight, image: Image, transition: Transition, refusal: Rejection | None
) -> Preflight:
    dead = image.membership.excluded() | declared_dead(found.requests())
    plans = sorted(transition.plans.items())
    shown = {name for name, plan in plans if plan.rows}
    return msgspec.structs.replace(
        found,
        tokens={subject.node_id: len(subject.tokens) for subject in transition.subjects},
        steps=tuple(_steps(transition)),
        receivers=tuple(OPERATIONS[transition.kind].receiving(image, transition)),
        gains=tuple(
            gain for name, plan in plans for gain in _gains(image, transition, name, plan, dead)
        ),
        placements=tuple(_placement(image, found.request, name, plan) for name, plan in plans),
        concerns=(
            *concerns_of(image, transition, found.requests(), dead),
            *(
                concern
                for concern in exclusion_concerns(image, found.requests(), found.excludes)
                # Changing rows name the writes that they give up themselves.
                if concern.placement not in shown or concern.code != "data_may_be_lost"
            ),
        ),
        refusal=refusal,
    )


def _steps(transition: Transition) -> Iterator[PlannedStep]:
    """Yield the states of the way forward."""
    operation = OPERATIONS[transition.kind]
    name: TransitionState | None = transition.state
    while name is not None:
        state = operation.states[name]
        yield PlannedStep(state=name, streams=state.streams, can_be_undone=state.can_be_cancelled)
        name = operation.following(name, transition.subjects)


def _gains(
    image: Image, transition: Transition, name: str, plan: TransitionPlan, dead: frozenset[str]
) -> Iterator[Gain]:
    """Yield the ranges that each receiver pulls, new ones and those that it streams again."""
    operation = OPERATIONS[transition.kind]
    ranges = defaultdict[tuple[str, tuple[str, ...], int], list[TransitionRow]](list)
    for row in plan.rows:
        for node_id in operation.receiving(image, transition):
            found = operation.sources(image, transition, row, node_id, dead)
            if found is not None:
                sources, needed = found
                ranges[node_id, sources, min(needed, len(sources))].append(row)
    for (node_id, sources, needed), rows in sorted(ranges.items()):
        yield Gain(
            node_id=node_id,
            placement=name,
            ranges=len(rows),
            share=share_of(rows),
            sources=sources,
            needed=needed,
        )


def _placement(image: Image, request: Request, name: str, plan: TransitionPlan) -> PlannedPlacement:
    """Return the changes of one placement.

    A future separate placement of a keyspace begins as the placement that the keyspace has now.
    """
    own = OPERATIONS[request.kind].own_placement(image, request)
    placement = image.ring.placement(name if own is None else own.begins_as)
    users = image.schema.using(name) if own is None else [image.schema.by_id[request.keyspace_id]]
    before = held_tokens(placement.rows)
    after = Counter(before)
    for row in plan.rows:
        size = distance(row.start, row.end)
        for node_id in row.coming():
            after[node_id] += size
        for node_id in row.leaving():
            after[node_id] -= size
    return PlannedPlacement(
        placement=name,
        keyspaces=tuple(keyspace.name for keyspace in users),
        ranges=len(placement),
        changing=len(plan.rows),
        changing_share=share_of(plan.rows),
        nodes=_compared(before, after),
        racks=_compared(_by_rack(image, before), _by_rack(image, after)),
    )


def _by_rack(image: Image, held: Counter[str]) -> Counter[str]:
    found = Counter[str]()
    for node_id, tokens in held.items():
        node = image.membership.nodes[node_id]
        found[f"{node.dc}/{node.rack}"] += tokens
    return found


def _compared(before: Counter[str], after: Counter[str]) -> dict[str, Share]:
    names = sorted({*before, *after})
    return {name: Share(before[name] / RING_SIZE, after[name] / RING_SIZE) for name in names}
