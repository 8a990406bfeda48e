"""Dry runs of commands: their effect, and whether it would start now.

The coordinator computes its next steps on an image in which the requests are pending. The result
shows whether it would open them, wait, or end them. A plan and the later execution therefore cannot
differ.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from statistics import fmean
from typing import Final

import msgspec

from stele.coordinator.model import Limits, Memory, Observed, Steps
from stele.coordinator.progress import members_down, wait_progress
from stele.coordinator.steps import next_steps
from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import forecast
from stele.domain.base import Rejection
from stele.domain.commands import ChooseMembers, Envelope, command_name
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import RejectRequest, RequestChanged
from stele.domain.model.settings import stream_limit_bytes_per_s
from stele.domain.model.topology import Advance, ExcludeDead, ServeRequest
from stele.domain.names import ASIDE, JOINING, NodeState, RequestStatus, WaitKind
from stele.domain.preflight import (
    Asked,
    Gain,
    Preflight,
    asked,
    preflight,
    share_of,
)
from stele.domain.ring.ranges import RING_SIZE, held_tokens
from stele.domain.ring.transition import TransitionRow, stream_sources
from stele.domain.tablets.maps import row_of
from stele.domain.topology.barriers import AckTable
from stele.domain.topology.operations.join import removal_of_replaced
from stele.runtime.answers.plans import PlanAnswer, PlannedStream, PlanVerdict

MOST_ASKED_NODES: Final = 16
"""Largest number of sources to query for their size. Each reads all its keys to answer."""


def dry_run(
    memory: Memory, seen: Observed, limits: Limits, *envelopes: Envelope
) -> PlanAnswer | Rejection:
    """Return the effect of the commands as one operation, or the metadata-log's refusal.

    Sizes are left out; see ``with_sizes``.
    """
    image = seen.image
    pending = asked(image, envelopes, seen.wall_ms)
    if isinstance(pending, Rejection):
        return pending
    most = min([limits.together(request.kind) for request in pending.requests], default=1)
    # More would open as several transitions, and this answer describes one.
    if len(envelopes) > most:
        return Rejection(
            "too_many_together",
            f"{len(envelopes)} are more than the {most} that open as one operation.",
            "Plan fewer at a time.",
        )
    plan = preflight(image, pending)
    found = PlanAnswer(
        epoch=image.epoch, state_id=image.state_id.hex(), plan=plan, verdict=PlanVerdict.STARTS
    )
    if not plan.has_plan:
        return msgspec.structs.replace(found, verdict=PlanVerdict.FAILS, failure=plan.refusal)
    term = image.topology.coordinator.term
    acks = _as_prepared(
        _with_newcomers(seen, pending.image), pending, seen.now_s - limits.down_after_s
    )
    looked_at = msgspec.structs.replace(seen, image=pending.image, acks=acks, term=term)
    judged = _judged(found, next_steps(memory, looked_at, limits), looked_at, limits)
    if not pending.image.schema.with_tablets():
        return judged
    return _with_tablets(judged, looked_at, limits)


_WAITS_WITHOUT_EFFECT: Final = (
    None,
    WaitKind.APPLIED,
    WaitKind.FENCED,
    WaitKind.MEMBERS,
    WaitKind.ROOM,
    WaitKind.SILENCE,
)
"""Waits of a plan whose end does not change what the balancer decides."""


def _with_tablets(judged: PlanAnswer, seen: Observed, limits: Limits) -> PlanAnswer:
    """Return the answer with the tablets that the balancer moves because of the operation.

    They move off a node before it leaves, and to a new node once it is a member. The operation
    fails if the balancer would end it: tablets have no destination, or no source. Only the log and the
    nodes that are up count. Full disks are visible to the balancer alone, which waits for room.
    """
    image, plan = seen.image, judged.plan
    ids = {r.request_id for r in plan.requests() if r.removes_node or r.replication or r.resizes}
    leaving = {r.node_id for r in plan.requests() if r.removes_node}
    leaving |= {r.replaced_id for r in plan.requests() if r.replaced_id}
    subjects = filter(None, (image.node(request.node_id) for request in plan.requests()))
    new = {node.node_id for node in subjects if node.state in JOINING}
    if not leaving | new | ids:
        return judged
    for request_id in sorted(r.request_id for r in plan.requests() if plan.excludes):
        exclude = Envelope(request_id=request_id, command=ExcludeDead(seen.term, request_id))
        decision = decide(image, exclude, seen.wall_ms)
        image = image if isinstance(decision, Rejection) else apply_facts(image, decision)
    image = apply_facts(image, _when_members(image, plan, new))
    taking_part = image.membership.taking_part()
    down = seen.acks.silent_for_longer(taking_part, limits.down_after_s, seen.now_s)
    found = forecast(image, Conditions(down=frozenset(down), now_ms=seen.wall_ms))
    moves = [m for m in found.moves if m.from_node in leaving or m.to_node in new]
    if moves:
        judged = msgspec.structs.replace(judged, plan=_with_moves(plan, image, moves))
    why = next((each.why for each in found.stuck if each.request_id in ids), "")
    waits_for = None if judged.wait is None else judged.wait.kind
    if not why or judged.verdict is PlanVerdict.FAILS or waits_for not in _WAITS_WITHOUT_EFFECT:
        return judged
    failure = Rejection("no_place_for_tablets", f"{why[0].upper()}{why[1:]}.")
    return msgspec.structs.replace(judged, verdict=PlanVerdict.FAILS, wait=None, failure=failure)


def _when_members(image: Image, plan: Preflight, new: Set[str]) -> Iterator[AnyFact]:
    """Yield the facts that make new nodes members, and remove the nodes that they replace."""
    for request in plan.requests():
        if request.node_id in new:
            node = image.membership.nodes[request.node_id]
            # The balancer needs to know only whether a member has tokens.
            tokens = (0,) if plan.tokens.get(node.node_id) else ()
            yield NodeChanged(msgspec.structs.replace(node, state=NodeState.NORMAL, tokens=tokens))
            done = msgspec.structs.replace(
                request, status=RequestStatus.DONE, finished_epoch=image.epoch
            )
            yield RequestChanged(done)
            if request.replaced_id:
                yield RequestChanged(removal_of_replaced(request, image.epoch))


def _with_moves(plan: Preflight, image: Image, moves: list[TabletMove]) -> Preflight:
    """Return the plan with tablets that move before its first step, or after its last one."""
    rows = defaultdict[tuple[str, str, tuple[str, ...], int], list[TransitionRow]](list)
    dead = image.membership.excluded()
    for move in moves:
        owner = image.schema.standing_map_owner(move.table)
        assert owner is not None, "a table that is balanced stands"
        now = row_of(image.ring.placements[owner.placement], move.tablet)
        after = tuple(move.to_node if n == move.from_node else n for n in now.reads)
        row = TransitionRow(now.start, now.end, now.reads, after)
        sources, needed = stream_sources(row, move.to_node, dead)
        key = move.to_node, owner.placement, sources, min(needed, len(sources))
        rows[key].append(row)
    gains = tuple(
        Gain(
            node_id=node_id,
            placement=placement,
            ranges=len(found),
            share=share_of(found),
            sources=sources,
            needed=needed,
        )
        for (node_id, placement, sources, needed), found in sorted(rows.items())
    )
    tablets = "1 tablet" if len(moves) == 1 else f"{len(moves)} tablets"
    is_ahead = any(request.removes_node for request in plan.requests())
    nodes = {move.from_node for move in moves} if is_ahead else {move.to_node for move in moves}
    where, when = ("off", "first") if is_ahead else ("to", "once the operation is done")
    foreseen = f"the tablet-balancer moves {tablets} {where} {', '.join(sorted(nodes))} {when}"
    return msgspec.structs.replace(
        plan,
        gains=(*gains, *plan.gains),
        receivers=tuple(sorted({*plan.receivers, *(move.to_node for move in moves)})),
        foreseen=(*plan.foreseen, foreseen),
    )


def _with_newcomers(seen: Observed, image: Image) -> AckTable:
    """Return the acks with new nodes as up: they send nothing before they are in the log."""
    acks = seen.acks
    for node_id, node in image.membership.nodes.items():
        if node_id not in seen.image.membership.nodes and node_id not in acks.by_node:
            ack = Ack(
                node_id=node_id,
                boot_id="",
                sequence=0,
                epoch=0,
                version=0,
                fence_version=0,
                oldest_version_in_use=0,
                host_id=node.host_id,
            )
            acks = acks.with_ack(ack, seen.now_s)
    return acks


def _as_prepared(acks: AckTable, pending: Asked, since_s: float) -> AckTable:
    """Return the acks with live nodes as prepared, because no node prepares for a request that is
    not sent.

    A node counts as live if its last ack is not older than ``since_s``.
    """
    ids = tuple(request.request_id for request in pending.requests)
    for node_id, known in acks.by_node.items():
        if known.at_s >= since_s:
            ack = msgspec.structs.replace(known.ack, prepared=(*known.ack.prepared, *ids))
            acks = AckTable(acks.by_node.set(node_id, msgspec.structs.replace(known, ack=ack)))
    return acks


def _judged(found: PlanAnswer, steps: Steps, seen: Observed, limits: Limits) -> PlanAnswer:
    """Return the answer with the verdict of the coordinator's next steps on the requests."""
    ids = {request.request_id for request in found.plan.requests()}
    begins = set[str]()
    for envelope in steps.commands:
        command = envelope.command
        if isinstance(command, RejectRequest) and command.target in ids:
            failure = Rejection(command_name(command), command.why)
            return msgspec.structs.replace(found, verdict=PlanVerdict.FAILS, failure=failure)
        if isinstance(command, ExcludeDead | ServeRequest | ChooseMembers):
            begins.add(command.target)
        if isinstance(command, Advance):
            begins.update(request_id for group in command.open for request_id in group)
    if ids <= begins:
        return found
    waits = [w for w in steps.waits if w.kind not in (WaitKind.LOG, *ASIDE)]
    own = (wait for wait in waits if ids & {*wait.request_ids})
    common = (wait for wait in waits if not wait.request_ids)
    wait = next(own, None) or next(common, None)
    if wait is None:
        return found
    in_words = wait_progress(wait, seen, limits, members_down(seen, limits))
    # The request does not exist yet, so no time has passed.
    shown = msgspec.structs.replace(in_words, waited_s=None)
    return msgspec.structs.replace(found, verdict=PlanVerdict.WAITS, wait=shown)


def largest_sources(plan: Preflight) -> list[str]:
    """Return the nodes to ask for their size: those that stream most."""
    gives = Counter[str]()
    for gain in plan.gains:
        for source in gain.sources:
            gives[source] += round(gain.share * RING_SIZE)
    return [node_id for node_id, _ in gives.most_common(MOST_ASKED_NODES)]


def with_sizes(
    found: PlanAnswer,
    image: Image,
    held_bytes: Mapping[str, Mapping[str, int]],
    bytes_per_s: float | None,
) -> PlanAnswer:
    """Return the answer with estimates of the bytes to stream and of the duration.

    ``held_bytes`` is by node and data id. ``bytes_per_s`` is the rate of one receiver, and the
    log's own limit bounds it. If it is unknown, that limit gives the least duration.
    """
    limit = stream_limit_bytes_per_s(image.features.settings)
    at_least = bytes_per_s is None and limit is not None
    bytes_per_s = min((rate for rate in (bytes_per_s, limit) if rate is not None), default=None)
    density = _density(found.plan, image, held_bytes)
    by_node = defaultdict[str, list[Gain]](list)
    for gain in found.plan.gains:
        by_node[gain.node_id].append(gain)
    nodes = sorted({*by_node, *found.plan.receivers})
    streams = tuple(
        _stream(node_id, by_node[node_id], density, bytes_per_s)
        if by_node[node_id] or not _serves(image, node_id)
        else PlannedStream(node_id, 0.0, None, None)  # it streams its own ranges again
        for node_id in nodes
    )
    # The balancer's moves do not overlap with the operation's own streams.
    own = {placement.placement for placement in found.plan.placements}
    phases = [
        [
            _stream(
                n, [g for g in by_node[n] if (g.placement in own) == is_own], density, bytes_per_s
            )
            for n in nodes
        ]
        for is_own in (True, False)
    ]
    sizes = [s.size_bytes for s in streams if s.size_bytes is not None]
    times = [max((s.duration_s or 0.0 for s in each), default=0.0) for each in phases]
    known = len(sizes) == len(streams)
    timed = all(stream.duration_s is not None for stream in streams)
    return msgspec.structs.replace(
        found,
        held_bytes={node_id: sum(held_bytes[node_id].values()) for node_id in sorted(held_bytes)},
        bytes_per_s=bytes_per_s,
        limit_bytes_per_s=limit,
        at_least=at_least,
        streams=streams,
        size_bytes=sum(sizes) if known else None,
        duration_s=sum(times) if timed else None,
    )


def _stream(
    node_id: str,
    gains: list[Gain],
    density: Mapping[tuple[str, str], float],
    bytes_per_s: float | None,
) -> PlannedStream:
    """Return the estimate of one receiver. All receivers stream at once."""
    share, size = 0.0, 0.0
    known = True
    for gain in gains:
        share += gain.share
        places = [(source, gain.placement) for source in gain.sources]
        found = [density[place] for place in places if place in density]
        known = known and (bool(found) or not gain.needed)
        # One source is pulled in full; of the others only rows that differ, which are few.
        size += gain.share * min(gain.needed, 1) * (fmean(found) if found else 0.0)
    if not known:
        return PlannedStream(node_id, share, None, None)
    time_s = 0.0 if not size else size / bytes_per_s if bytes_per_s else None
    return PlannedStream(node_id, share, round(size), time_s)


def _density(
    plan: Preflight, image: Image, held_bytes: Mapping[str, Mapping[str, int]]
) -> dict[tuple[str, str], float]:
    """Return the bytes of a whole ring by source and gained placement, for nodes that answered."""
    names = {each.placement: each.keyspaces for each in plan.placements}
    gained = {gain.placement for gain in plan.gains}
    users = {p: names.get(p) or [data.name for data in image.schema.using(p)] for p in gained}
    streamed = {name for each in users.values() for name in each}
    sizes = defaultdict[tuple[str, str], float](float)
    by_placement = dict[str, Counter[str]]()
    for node_id, held in held_bytes.items():
        for data_id, size_bytes in held.items():
            data = image.schema.of_data(data_id)
            if data is None or data.name not in streamed:
                continue
            if data.placement not in by_placement:
                rows = image.ring.placement(data.placement).rows
                by_placement[data.placement] = held_tokens(rows)
            if tokens := by_placement[data.placement][node_id]:
                sizes[node_id, data.name] += size_bytes * RING_SIZE / tokens
    return {
        (node_id, placement): sum(sizes[node_id, name] for name in each)
        for node_id in held_bytes
        for placement, each in users.items()
    }


def _serves(image: Image, node_id: str) -> bool:
    """Return whether the node serves reads of any range."""
    placements = map(image.ring.placement, image.ring.placements)
    return any(node_id in row.reads for placement in placements for row in placement.rows)
