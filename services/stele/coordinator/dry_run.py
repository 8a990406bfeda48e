"""Commands that are asked about and not sent: what they would do, and whether that would start now.

The coordinator takes its own next look at an image in which the requests are pending, and reads there whether
it would open it, wait, or end it; so what a plan says and what is done cannot differ.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import fmean
from typing import Final

import msgspec

from stele.coordinator.knowledge import Limits, Memory, Observed, Steps
from stele.coordinator.progress import wait_progress
from stele.coordinator.steps import next_steps
from stele.domain.acks import AckTable
from stele.domain.base import Rejection
from stele.domain.commands import ChooseMembers, Envelope, command_name
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.requests.commands import RejectRequest
from stele.domain.ring.tokens import RING_SIZE
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.proposals import never_drained
from stele.domain.topology.commands import Advance, ExcludeDead, ServeRequest
from stele.domain.topology.limits import stream_limit_bytes_per_s
from stele.domain.topology.preflight import Asked, Gain, Preflight, asked, preflight, tokens_held
from stele.runtime.answers.coordinator import ASIDE, WaitKind
from stele.runtime.answers.plans import PlanAnswer, PlannedStream, Verdict

ASKED_NODES: Final = 16
"""So many sources at most are asked how much they hold: each reads all of its keys for the answer."""


def dry_run(
    memory: Memory, seen: Observed, limits: Limits, *envelopes: Envelope
) -> PlanAnswer | Rejection:
    """What the commands would do, as one operation, or the refusal of metadata-log. Sizes are left out, see
    ``with_sizes``.
    """
    image = seen.image
    pending = asked(image, envelopes, seen.wall_ms)
    if isinstance(pending, Rejection):
        return pending
    most = min([limits.together(request.kind) for request in pending.requests], default=1)
    if len(envelopes) > most:
        return Rejection(
            "too_many_together",
            f"{len(envelopes)} are more than the {most} that open as one operation.",
            "Plan fewer at a time.",
        )
    plan = preflight(image, pending)
    found = PlanAnswer(
        epoch=image.epoch, state_id=image.state_id.hex(), plan=plan, verdict=Verdict.STARTS
    )
    if not plan.has_plan:
        return msgspec.structs.replace(found, verdict=Verdict.FAILS, failure=plan.refusal)
    term = image.topology.coordinator.term
    acks = _as_prepared(
        _with_newcomers(seen, pending.image), pending, seen.now_s - limits.down_after_s
    )
    looked_at = msgspec.structs.replace(seen, image=pending.image, acks=acks, term=term)
    judged = _judged(found, next_steps(memory, looked_at, limits), looked_at, limits)
    waits_for = None if judged.wait is None else judged.wait.kind
    if judged.verdict is Verdict.FAILS or waits_for not in (None, WaitKind.ROOM, WaitKind.SILENCE):
        return judged
    why = _never_drained(looked_at, plan, limits)
    if not why:
        return judged
    failure = Rejection("no_place_for_tablets", f"{why[0].upper()}{why[1:]}.")
    return msgspec.structs.replace(judged, verdict=Verdict.FAILS, wait=None, failure=failure)


def _never_drained(seen: Observed, plan: Preflight, limits: Limits) -> str:
    """Why the balancer would end one of the requests, whose tablets nobody can take; empty when it would not.
    That is by the log and by who is up: what fills disks only the balancer knows, and goes on waiting for.
    """
    image = seen.image
    ids = {request.request_id for request in plan.requests() if request.removes_node}
    if not ids or not image.schema.with_tablets():
        return ""
    for request_id in sorted(ids) if plan.excludes else ():
        exclude = Envelope(request_id=request_id, command=ExcludeDead(seen.term, request_id))
        decision = decide(image, exclude, seen.wall_ms)
        image = image if isinstance(decision, Rejection) else apply_facts(image, decision)
    nodes = image.membership.taking_part()
    down = seen.acks.silent_for_longer(nodes, limits.down_after_s, seen.now_s)
    stuck = never_drained(image, Conditions(down=frozenset(down), now_ms=seen.wall_ms))
    return next((each.why for each in stuck if each.request_id in ids), "")


def _with_newcomers(seen: Observed, image: Image) -> AckTable:
    """New nodes send nothing before the log knows them: they are taken to be up."""
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
    """Nobody prepares for what nobody has asked for yet: those who were heard ``since_s`` are taken to be."""
    ids = tuple(request.request_id for request in pending.requests)
    for node_id, known in acks.by_node.items():
        if known.at_s >= since_s:
            ack = msgspec.structs.replace(known.ack, prepared=(*known.ack.prepared, *ids))
            acks = AckTable(acks.by_node.set(node_id, msgspec.structs.replace(known, ack=ack)))
    return acks


def _judged(found: PlanAnswer, steps: Steps, seen: Observed, limits: Limits) -> PlanAnswer:
    """The answer with what the coordinator's look says of the requests."""
    ids = {request.request_id for request in found.plan.requests()}
    begins = set[str]()
    for envelope in steps.commands:
        command = envelope.command
        if isinstance(command, RejectRequest) and command.target in ids:
            failure = Rejection(command_name(command), command.why)
            return msgspec.structs.replace(found, verdict=Verdict.FAILS, failure=failure)
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
    shown = msgspec.structs.replace(wait_progress(wait, seen, limits), waited_s=None)
    return msgspec.structs.replace(found, verdict=Verdict.WAITS, wait=shown)


def largest_sources(plan: Preflight) -> list[str]:
    """The nodes to ask how much they hold: those that give most."""
    gives = Counter[str]()
    for gain in plan.gains:
        for source in gain.sources:
            gives[source] += round(gain.share * RING_SIZE)
    return [node_id for node_id, _ in gives.most_common(ASKED_NODES)]


def with_sizes(
    found: PlanAnswer, image: Image, held_bytes: Mapping[str, int], bytes_per_s: float | None
) -> PlanAnswer:
    """The answer with estimates of what is to be streamed, and of how long that takes.

    ``held_bytes`` are by node, over all keyspaces; ``bytes_per_s`` is what one node receives, as far as the
    log's own limit lets it. Where it is not known that limit says how long it takes at least.
    """
    limit = stream_limit_bytes_per_s(image.features.settings)
    at_least = bytes_per_s is None and limit is not None
    bytes_per_s = min((rate for rate in (bytes_per_s, limit) if rate is not None), default=None)
    copies = _copies_held(image)
    density = {n: size / copies[n] for n, size in held_bytes.items() if copies[n]}
    by_node = defaultdict[str, list[Gain]](list)
    for gain in found.plan.gains:
        by_node[gain.node_id].append(gain)
    nodes = sorted({*by_node, *found.plan.receivers})
    streams = tuple(
        _stream(node_id, by_node[node_id], density, bytes_per_s)
        if by_node[node_id] or not copies[node_id]
        else PlannedStream(node_id, 0.0, None, None)  # streams again what it has
        for node_id in nodes
    )
    sizes = [s.size_bytes for s in streams if s.size_bytes is not None]
    times = [s.duration_s for s in streams if s.duration_s is not None]
    known, timed = len(sizes) == len(streams), len(times) == len(streams)
    return msgspec.structs.replace(
        found,
        held_bytes=dict(sorted(held_bytes.items())),
        bytes_per_s=bytes_per_s,
        limit_bytes_per_s=limit,
        at_least=at_least,
        streams=streams,
        size_bytes=sum(sizes) if known else None,
        duration_s=max(times, default=0.0) if timed else None,
    )


def _stream(
    node_id: str, gains: list[Gain], density: Mapping[str, float], bytes_per_s: float | None
) -> PlannedStream:
    """All receivers stream at once, each from as many sources as it needs."""
    share, size = 0.0, 0.0
    known = True
    for gain in gains:
        share += gain.share
        found = [density[source] for source in gain.sources if source in density]
        known = known and (bool(found) or not gain.needed)
        size += gain.share * gain.needed * (fmean(found) if found else 0.0)
    if not known:
        return PlannedStream(node_id, share, None, None)
    time_s = size / bytes_per_s if bytes_per_s else None if size else 0.0
    return PlannedStream(node_id, share, round(size), time_s)


def _copies_held(image: Image) -> dict[str, float]:
    """How many copies of the ring each node is read for, over all placements."""
    held = Counter[str]()
    for placement in image.ring.placements:
        held.update(tokens_held(image.ring.placement(placement).rows))
    return defaultdict[str, float](float, {n: tokens / RING_SIZE for n, tokens in held.items()})
