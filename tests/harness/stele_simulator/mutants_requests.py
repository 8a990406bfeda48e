"""Known bugs of requests and commits: request ids, parts, restrictions, global requests and agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

from msgspec.structs import replace

from stele.agent.cleanup import foreign_ranges
from stele.coordinator import transitions
from stele.coordinator.actions import Check
from stele.coordinator.model import StepContext, Wait
from stele.domain import fencing, request_memory
from stele.domain.base import Fact
from stele.domain.commands import Envelope, Rejection
from stele.domain.context import Decision, DecisionCache
from stele.domain.decide import decide
from stele.domain.facts import AnyFact
from stele.domain.fencing import StaleVersion
from stele.domain.image import Image
from stele.domain.model.commits import Commits
from stele.domain.model.schema import owner_of
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind
from stele.domain.not_taken import check_id, horizon_of, restricted
from stele.domain.registry import FACTS
from stele.domain.request_memory import SealedGeneration, restored
from stele.domain.ring.ranges import Range
from stele.domain.staging import Part, PartsCommitted, StagedFact, StagingImage, unfolded
from stele.domain.topology.barriers import AckTable, StateIdOf, unknown
from stele.domain.topology.operations import global_requests
from stele.domain.topology.operations.base import Served, State
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.pipeline import CommitPipeline
from stele.log.record_builder import DecideAfter, Waiting, in_parts, set_outcome, why_not_taken
from stele.node.streaming import Streamer
from stele.runtime.answers.session_guard import Liveness, SchemaAgreement
from stele.session_guard import guard
from stele.session_guard.guard import LivenessTracker
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

# Planted bugs of the memory of decided requests: what is forgotten, and what is too old to be
# decided.


@planted(RUN, rule="4")
def horizon_is_not_compared(patch: Patch) -> None:
    """Whatever is not remembered is decided, however old its id."""
    patch.function(why_not_taken, lambda image, envelope: restricted(image.commits, envelope))


@planted(RUN, rule="I2")
def forgetting_does_not_raise_the_horizon(patch: Patch) -> None:
    """A generation of decisions is forgotten, and its ids are taken as if they were new."""
    patch.attribute(SealedGeneration, "newest_ms", -1)


@planted(RUN, rule="I8")
def snapshot_forgets_the_horizon(patch: Patch) -> None:
    """A process that starts from a snapshot accepts ids that are too old for others."""
    patch.attribute(
        request_memory, "restored", lambda young, floor, horizon_ms: restored(young, floor, -1)
    )


@planted(RUN, rule="I10")
def horizon_is_not_heard(patch: Patch) -> None:
    """A process ignores the horizon of ids in refusals and uses the log's time, whose ids stay too old while
    no other command arrives.
    """
    patch.function(horizon_of, lambda rejection: -1)


@planted(RUN, rule="I10")
def ids_behind_the_horizon_are_from_the_future(patch: Patch) -> None:
    """Once a wrong clock has raised the horizon far ahead, no id is new enough and none is taken that is."""
    plain = check_id

    def check(
        request_id: str, state_id: bytes, now_ms: int, horizon_ms: int = -1
    ) -> Rejection | None:
        return plain(request_id, state_id, now_ms)

    patch.function(plain, check)


# Planted bugs of decisions that go in parts, and of records that are too large.


Split = tuple[list[Part], tuple[AnyFact, ...]] | Rejection


@planted(RUN, rule="7")
def parts_count_without_their_commit(patch: Patch) -> None:
    """The facts of a part are true as soon as it has won."""

    def eager(staging: StagingImage, facts: Iterable[Fact]) -> Iterator[Fact]:
        for fact in facts:
            if isinstance(fact, Part):
                yield from fact.facts
            yield fact

    patch.function(unfolded, eager)


@planted(RUN, rule="7")
def first_part_does_not_replace(patch: Patch) -> None:
    """When a foreign record wins between parts, what was staged is committed with the next decision."""

    def added(image: StagingImage, fact: Part) -> StagingImage:
        return StagingImage(fact.staging_id, (*image.parts, fact.facts))

    def whatever_is_there(self: StagingImage, commit: PartsCommitted) -> Iterator[StagedFact]:
        for facts in self.parts:
            yield from facts

    name, _ = FACTS[Part]
    patch.item(FACTS, Part, (name, added))
    patch.attribute(StagingImage, "of", whatever_is_there)


@planted(RUN, rule="7")
def parts_are_decided_for_the_first_epoch(patch: Patch) -> None:
    """A command in parts names the epoch of its first part instead of that of its commit."""

    def not_again(
        facts: tuple[AnyFact, ...], staging_id: str, decide_after: DecideAfter, part_bytes: int
    ) -> Split:
        return in_parts(facts, staging_id, lambda epochs: decide_after(0), part_bytes)

    patch.function(in_parts, not_again)


# Planted bugs of a log that is frozen, or of one actor.


@planted(RUN)
def frozen_log_refuses(patch: Patch) -> None:
    """A frozen log rejects commands by a recorded decision, so their ids stay rejected."""
    judge, plain = restricted, decide

    def refuse(
        image: Image,
        envelope: Envelope,
        at_ms: int,
        cache: DecisionCache | None = None,
        supported: Set[str] | None = None,
    ) -> Decision:
        refused = judge(image.commits, envelope)
        return refused or plain(image, envelope, at_ms, cache, supported)

    def never(commits: Commits, envelope: Envelope) -> Rejection | None:
        return None

    patch.function(decide, refuse)
    patch.function(restricted, never)


@planted(RUN)
def frozen_by_what_was_read(patch: Patch) -> None:
    """The check for a frozen log ignores records in flight."""
    submit = CommitPipeline._submit

    def by_what_was_read(
        self: CommitPipeline, waiting: Waiting, unrelated: frozenset[int] = frozenset()
    ) -> None:
        tip, known = self.tip, waiting.envelope.request_id in self._by_request
        read = restricted(self.fold.image.commits, waiting.envelope)
        if read is None and restricted(tip.commits, waiting.envelope) and not known:
            self._decide(waiting, tip)
        else:
            submit(self, waiting, unrelated)

    patch.attribute(CommitPipeline, "_submit", by_what_was_read)


@planted(RUN)
def frozen_is_told_before_it_is_certain(patch: Patch) -> None:
    """Callers learn of a freeze while its record is in flight and may lose."""
    submit = CommitPipeline._submit

    def at_once(
        self: CommitPipeline, waiting: Waiting, unrelated: frozenset[int] = frozenset()
    ) -> None:
        why = restricted(self.tip.commits, waiting.envelope)
        if why is None or waiting.envelope.request_id in self._by_request:
            submit(self, waiting, unrelated)
        else:
            set_outcome(waiting.pending, self._not_taken(waiting.envelope, why))

    patch.attribute(CommitPipeline, "_submit", at_once)


# Planted bugs of global requests: what they wait for, and what becomes of truncated data.


@planted(STORY)
def truncation_keeps_the_data(patch: Patch) -> None:
    """The data of a truncated keyspace has the id that it had."""
    change_operation(patch, RequestKind.TRUNCATE, on_open=lambda image, transition, version: ())


@planted(RUN)
def truncation_ends_by_a_quorum(patch: Patch) -> None:
    """A truncation is done when most members have reported."""
    plain = transitions._have_reported_work

    def most_have(context: StepContext, transition: Transition, state: State) -> Check:
        members = len(context.image.membership.taking_part())
        found = plain(context, transition, state)
        waits = [action for action in found.actions if isinstance(action, Wait)]
        passed = any(2 * len(wait.blockers) < members for wait in waits)
        return Check(found.passed or passed, found.actions)

    patch.attribute(transitions, "_have_reported_work", most_have)


@planted(STORY)
def truncated_data_answers_until_the_fence(patch: Patch) -> None:
    """A replica that knows of a truncation serves older data until its version is fenced."""
    plain = fencing.check_token

    def by_the_fence(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
        keyspace = image.schema.by_id.get(owner_of(data_id))
        fenced = image.topology.fence_version
        if keyspace is not None and keyspace.data_id != data_id and version >= fenced:
            return None
        return plain(image, data_id, token, version)

    patch.function(plain, by_the_fence)


@planted(STORY)
def streams_bring_truncated_data_back(patch: Patch) -> None:
    """Streamed rows are stored although they were truncated in the meantime."""
    patch.attribute(Streamer, "_may_keep", lambda self, reading, rows, place: reading.guard.is_open)


@planted(STORY)
def cleanup_keeps_what_was_truncated(patch: Patch) -> None:
    """A cleanup checks only present data, although the node missed a truncation of the rest."""
    plain = foreign_ranges

    def of_what_is_there(image: Image, node_id: str, data_id: str, shard: int = 0) -> list[Range]:
        there = image.schema.of_data(data_id) is not None
        return plain(image, node_id, data_id, shard) if there else []

    patch.function(plain, of_what_is_there)


@planted(STORY)
def cleanup_waits_for_nobody(patch: Patch) -> None:
    """A cleanup is done as soon as it was begun."""
    _serve(patch, RequestKind.CLEANUP)


@planted(STORY)
def noop_passes_the_fence(patch: Patch) -> None:
    """A noop is done although a version that was there before it is not fenced."""
    _serve(patch, RequestKind.NOOP_REQUEST)


@planted(STORY)
def quiesce_forgets_what_was_before(patch: Patch) -> None:
    """A quiesce does not wait for the requests before it."""
    rest = tuple(c for c in global_requests.CONDITIONS if c is not global_requests.earlier_requests)
    patch.attribute(global_requests, "CONDITIONS", rest)


def _serve(patch: Patch, kind: RequestKind) -> None:
    """Report that requests of this kind need no more orders."""
    served = OPERATIONS[kind].served
    assert served is not None
    hasty = Served(missing=lambda image, request: None, step=served.step)
    change_operation(patch, kind, served=hasty)


# Known bugs of agreement on the schema: members that are left out, and guards that are behind.


Judge = Callable[[SchemaAgreement, Image], SchemaAgreement]


def _judged(patch: Patch, judge: Judge) -> None:
    """Replace the answer of guards by what ``judge`` makes of it."""
    plain = guard.schema_agreement

    def judged(
        image: Image,
        acks: AckTable,
        tracker: LivenessTracker,
        now_s: float,
        epoch: int = 0,
        state_id_of: StateIdOf = unknown,
    ) -> SchemaAgreement:
        return judge(plain(image, acks, tracker, now_s, epoch, state_id_of), image)

    patch.function(plain, judged)


def _agreed_without(found: SchemaAgreement, image: Image, left_out: set[str]) -> SchemaAgreement:
    behind = tuple(name for name in found.behind if name not in left_out)
    return replace(found, behind=behind, agreed=image.epoch >= found.epoch and not behind)


@planted(STORY, rule="A1")
def agreement_lacks_a_member(patch: Patch) -> None:
    """A guard does not wait for a single member that is behind."""

    def without_one(found: SchemaAgreement, image: Image) -> SchemaAgreement:
        return _agreed_without(found, image, {*found.behind[:1]})

    _judged(patch, without_one)


@planted(STORY, rule="A1")
def unknown_members_do_not_count(patch: Patch) -> None:
    """A guard that has just started, and does not know who is live, does not wait for the unknown."""

    def without_unknown(found: SchemaAgreement, image: Image) -> SchemaAgreement:
        left_out = {m.node_id for m in found.members if m.liveness is Liveness.UNKNOWN}
        return _agreed_without(found, image, left_out)

    _judged(patch, without_unknown)


@planted(STORY, rule="A1")
def guards_behind_the_log_answer(patch: Patch) -> None:
    """A guard answers by the members of an image before the epoch, without one that joined since."""

    def at_once(found: SchemaAgreement, image: Image) -> SchemaAgreement:
        return replace(found, agreed=not found.behind)

    _judged(patch, at_once)


@planted(STORY, rule="A1")
def silence_of_the_broker_is_death(patch: Patch) -> None:
    """A guard that is cut off from the brokers declares the members down, and waits for none of them."""

    def by_the_clock(self: LivenessTracker, node_id: str, now_s: float) -> Liveness:
        known = self.by_node.get(node_id)
        is_late = known is not None and now_s - known.last_s > self.timeout_s
        return Liveness.DOWN if is_late else Liveness.UP

    patch.attribute(LivenessTracker, "liveness", by_the_clock)


@planted(STORY, rule="A1")
def heard_members_agree(patch: Patch) -> None:
    """A heartbeat is enough: a guard does not compare the epoch in it."""

    def heard(acks: AckTable, node: Any, epoch: int, state_id_of: StateIdOf = unknown) -> str:
        return "" if node.node_id in acks.by_node else "never sent a heartbeat"

    patch.attribute(guard, "why_not_applied", heard)
