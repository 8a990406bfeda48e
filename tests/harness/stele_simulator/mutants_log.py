"""Known bugs of the log and of its recovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from stele.catch_up import filling, keeper, recovering
from stele.domain.commands import Envelope, Outcome, Rejection
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import ZERO_STATE, Image
from stele.domain.model import archive
from stele.domain.request_memory import RequestMemory
from stele.domain.snapshot import image_to_facts
from stele.log.archive import segments, snapshots
from stele.log.archive.snapshots import SnapshotHead
from stele.log.chain import PREV_STATE_ID, STATE_BYTES, Anchor
from stele.log.codec import decode_epoch
from stele.log.fold import Fold, Start
from stele.log.history import History, HistoryMark, Winner
from stele.log.pipeline import CommitPipeline
from stele.log.port import LogPast, Record, TopicProbe
from stele.log.reader import TopicReader
from stele.log.record_builder import (
    CommandInFlight,
    InFlight,
    Pending,
    RecordBuilder,
    Waiting,
    next_state_id,
    outcome_of,
    set_outcome,
)
from stele.runtime import starting
from stele.runtime.answers.catch_up import SnapshotAnswer
from stele.runtime.catch_up import CatchUp
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted

# Planted bugs of the log: each breaks one rule of the commit protocol, and is named after what it
# does.


replace = msgspec.structs.replace


def _applied(envelope: Envelope, epoch: int, state_id: bytes) -> Outcome:
    return Outcome(request_id=envelope.request_id, applied=True, epoch=epoch, state_id=state_id)


@planted(RUN, rule="2")
def acknowledge_before_apply(patch: Patch) -> None:
    """The writer answers when it has appended, before its reader has met the record."""
    launch = CommitPipeline._launch

    def eager(self: CommitPipeline, flight: InFlight) -> None:
        launch(self, flight)
        for command in flight.commands:
            if command.refused is None:
                for waiting in command.callers:
                    image = flight.image
                    set_outcome(
                        waiting.pending, _applied(waiting.envelope, image.epoch, image.state_id)
                    )
                command.callers = []

    patch.attribute(CommitPipeline, "_launch", eager)


@planted(RUN, rule="1")
def compare_and_swap_by_epoch_number(patch: Patch) -> None:
    """Readers take the first record with the next epoch number, whatever state it was decided on."""
    offer = Fold.offer

    def by_number(self: Fold, offset: int, value: bytes) -> Epoch | None:
        epoch = decode_epoch(value)
        if epoch.epoch != self.image.epoch + 1:
            return offer(self, offset, value)
        self.chain.jump(offset)
        self.chain.win(offset, value)
        image = apply_facts(self.image, epoch.facts)
        self.image = replace(image, epoch=epoch.epoch, state_id=epoch.state_id)
        return epoch

    patch.attribute(Fold, "offer", by_number)


@planted(RUN, rule="1")
def replay_a_loser(patch: Patch) -> None:
    """A reader applies the facts of a record that lost its epoch."""
    offer = Fold.offer

    def forgiving(self: Fold, offset: int, value: bytes) -> Epoch | None:
        found = offer(self, offset, value)
        if found is None:
            self.image = apply_facts(self.image, decode_epoch(value).facts)
        return found

    patch.attribute(Fold, "offer", forgiving)


@planted(RUN, rule="4")
def forget_applied_requests(patch: Patch) -> None:
    """The memory of decided requests forgets: a retry takes effect again."""
    patch.attribute(RequestMemory, "candidates", lambda self, request_id: ())


@planted(RUN, rule="I2")
def recognise_requests_by_payload(patch: Patch) -> None:
    """Two equal commands are taken for one."""
    submit = CommitPipeline._submit
    seen: dict[str, int] = {}

    def by_payload(
        self: CommitPipeline, waiting: Waiting, unrelated: frozenset[int] = frozenset()
    ) -> None:
        command = repr(waiting.envelope.command)
        if command in seen:
            set_outcome(waiting.pending, _applied(waiting.envelope, seen[command], ZERO_STATE))
            return

        def remember(pending: Pending) -> None:
            if not pending.cancelled() and pending.exception() is None and pending.result().applied:
                seen[command] = pending.result().epoch

        waiting.pending.add_done_callback(remember)
        submit(self, waiting)

    patch.attribute(CommitPipeline, "_submit", by_payload)


@planted(RUN, rule="9")
def reject_on_an_old_state(patch: Patch) -> None:
    """A refusal is answered at once, from a state that may be long past."""

    def at_once(self: CommitPipeline, command: CommandInFlight, rejection: Rejection) -> None:
        image = self.fold.image
        for waiting in command.callers:
            set_outcome(waiting.pending, outcome_of(command.request_id, image, rejection))

    patch.attribute(CommitPipeline, "_refuse", at_once)


@planted(RUN, rule="10")
def barrier_reads_locally(patch: Patch) -> None:
    """A linearizable read is answered from what this process happens to have."""

    def local(self: CommitPipeline, pending: Pending) -> None:
        set_outcome(pending, outcome_of("", self.fold.image, None))

    patch.attribute(CommitPipeline, "_linearizable_read", local)


@planted(RUN, rule="I10")
def barrier_that_lost_is_not_answered(patch: Patch) -> None:
    """A linearizable read waits for ever where other records came before its own."""
    hold_all = CommitPipeline._hold_all

    def forget(self: CommitPipeline) -> None:
        for flight in self._in_flight:
            flight.readers = []
        hold_all(self)

    patch.attribute(CommitPipeline, "_hold_all", forget)


@planted(RUN, rule="10")
def barrier_is_shared_for_ever(patch: Patch) -> None:
    """Late readers join a NOOP that was appended long before they asked."""
    linearizable_read = CommitPipeline._linearizable_read

    def join(self: CommitPipeline, pending: Pending) -> None:
        for flight in self._in_flight:
            if flight.readers:
                flight.readers.append(pending)
                return
        linearizable_read(self, pending)

    patch.attribute(CommitPipeline, "_linearizable_read", join)


@planted(RUN, rule="9")
def loser_is_not_decided_again(patch: Patch) -> None:
    """A lost command's old facts are appended again on top of the new state."""
    encode = RecordBuilder.encode
    decided: dict[str, tuple[AnyFact, ...]] = {}

    def once(
        self: RecordBuilder,
        tip: Any,
        read: Any,
        envelope: Envelope,
        digest: bytes,
        facts: tuple[AnyFact, ...],
        at_ms: int,
        state_id: bytes = b"",
    ) -> Any:
        if envelope.request_id:
            facts = decided.setdefault(envelope.request_id, facts)
        return encode(self, tip, read, envelope, digest, facts, at_ms, state_id)

    patch.attribute(RecordBuilder, "encode", once)


@planted(RUN, rule="3")
def timeout_is_failure(patch: Patch) -> None:
    """A record that was not met in time is reported as refused, though it may still win."""

    def give_up(self: CommitPipeline) -> None:
        image, refused = self.fold.image, Rejection("timeout", "The log did not answer.")
        for flight in self._in_flight:
            for command in flight.commands:
                for waiting in command.callers:
                    set_outcome(waiting.pending, outcome_of(command.request_id, image, refused))
                command.callers = []
        resolve(self)

    resolve = CommitPipeline.resolve
    patch.attribute(CommitPipeline, "resolve", give_up)


@planted(RUN, rule="I10")
def lost_append_is_never_resolved(patch: Patch) -> None:
    """The outcome of an append that may be lost is never resolved."""
    patch.attribute(CommitPipeline, "resolve", lambda self: None)


@planted(RUN, rule="I2")
def state_ids_without_chance(patch: Patch) -> None:
    """Two writers may choose the same id for different states."""

    def counted(previous: bytes, now_ms: int, entropy: int) -> bytes:
        return (int.from_bytes(previous, "big") + 1).to_bytes(STATE_BYTES, "big")

    patch.function(next_state_id, counted)


@planted(RUN, rule="I1")
def snapshot_is_one_record_off(patch: Patch) -> None:
    """A snapshot has the next offset one record too high."""
    plain = snapshots.head_of

    def off_by_one(image: Image, next_offset: int, anchor: Anchor, at_ms: int) -> SnapshotHead:
        return plain(image, next_offset + 1, anchor, at_ms)

    patch.function(plain, off_by_one)


@planted(RUN, rule="I8")
def snapshot_forgets_topology(patch: Patch) -> None:
    """Version, fence and transitions are not part of the snapshot."""
    plain = image_to_facts

    def without(image: Image) -> list[AnyFact]:
        return plain(replace(image, topology=type(image.topology)()))

    patch.function(image_to_facts, without)


@planted(RUN, rule="2")
def writer_trusts_its_own_image(patch: Patch) -> None:
    """The writer takes its record for the winner although another came first."""
    on_record = CommitPipeline.on_record

    def selfish(self: CommitPipeline, offset: int, value: bytes) -> Epoch | None:
        if self._in_flight and value[PREV_STATE_ID] == self.fold.image.state_id:
            self._won(offset)
            return None
        return on_record(self, offset, value)

    patch.attribute(CommitPipeline, "on_record", selfish)


@planted(RUN, rule="I9")
def watch_goes_on_one_epoch_late(patch: Patch) -> None:
    """A watch resumes one epoch too late."""
    winners = History.winners

    patch.attribute(History, "winners", lambda self, first, limit: winners(self, first + 1, limit))


@planted(RUN, rule="I9")
def watch_is_told_losers(patch: Patch) -> None:
    """Where the past is read again, every record counts as an epoch."""

    async def all_records(self: History, mark: HistoryMark, last: int) -> AsyncIterator[Winner]:
        epoch, next_offset, *_ = mark
        while epoch < last:
            for offset, value in await self._log.read(next_offset, last - epoch):
                epoch, next_offset = epoch + 1, offset + 1
                yield Winner(epoch, offset, value)

    patch.attribute(History, "_winners", all_records)


@planted(RUN, rule="I10")
def past_begins_with_a_later_image(patch: Patch) -> None:
    """The image at an epoch of the past is folded from the nearest one that is kept, before it or after."""

    def nearest(self: History, epoch: int) -> Start:
        return min(self._images, key=lambda kept: abs(kept.image.epoch - epoch))

    patch.attribute(History, "_checkpoint_before", nearest)


# Known bugs of archives, of snapshots to begin with, of truncation and of recovery, in whole
# processes.


@planted(RUN, rule="I1")
def recovery_looks_for_no_other(patch: Patch) -> None:
    """A recovery takes its own record for the first one, even after another recovery."""

    plain = recovering.recovery_in
    asked = 0

    async def own(topic: LogPast, log_id: bytes, begin: int, end: int) -> Record | None:
        nonlocal asked
        asked += 1
        return None if asked % 2 else await plain(topic, log_id, begin, end)

    patch.attribute(recovering, "recovery_in", own)


@planted(RUN, rule="11")
def anchor_is_not_looked_for(patch: Patch) -> None:
    """A reader is content with the topic's name: what stands at its last winner's place is all the same."""

    def content(self: TopicReader, anchor: Anchor | None, look: TopicProbe) -> None:
        self.topic_id = look.topic_id

    patch.attribute(TopicReader, "_compare", content)


@planted(RUN, rule="I10")
def lost_log_ends_the_process(patch: Patch) -> None:
    """A process that detects the loss of its log exits, and its unarchived epochs are lost."""

    async def at_once(log_id: str, catch_up: CatchUp) -> None:
        await asyncio.sleep(0)

    patch.function(starting.recovered, at_once)


@planted(RUN, rule="I2")
def writers_begin_without_what_was_decided(patch: Patch) -> None:
    """A writer that begins with a snapshot does not know which requests were decided."""
    plain = CatchUp.load

    async def image_alone(
        self: CatchUp, url: str, snapshot: SnapshotAnswer, *, decided: bool
    ) -> Start:
        start = await plain(self, url, snapshot, decided=False)
        empty = Image().decided if decided else None
        return start._replace(image=msgspec.structs.replace(start.image, decided=empty))

    patch.attribute(CatchUp, "load", image_alone)


@planted(RUN)
def one_member_is_a_majority(patch: Patch) -> None:
    """Records are deleted that a single replica has."""
    patch.function(archive.majority, lambda members: 1)


@planted(RUN)
def epochs_are_held_before_they_are_synced(patch: Patch) -> None:
    """A segment counts as being on the disk as soon as it was written."""
    patch.attribute(segments, "sync_file", lambda file: None)


@planted(RUN, rule="13")
def snapshots_tell_who_wrote_them(patch: Patch) -> None:
    """The head of a snapshot has the time of the machine that took it."""
    plain = snapshots.head_of

    def by_its_clock(image: Image, next_offset: int, anchor: Anchor, at_ms: int) -> SnapshotHead:
        return plain(image, next_offset, anchor, vars(keeper)["time"].time_ns() // 1_000_000)

    patch.function(plain, by_its_clock)


@planted(RUN, rule="I10")
def damage_is_not_mended(patch: Patch) -> None:
    """A replica does not fetch missing parts of its archive from others."""
    patch.function(filling.gaps, lambda *_: iter(()))
