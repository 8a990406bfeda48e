"""Epochs' records: what a command becomes, decided on a state and encoded, no input or output."""

from collections.abc import Callable, Set
from typing import Final

import msgspec

from stele.domain.commands import (
    AnyCommand,
    Envelope,
    FoundCluster,
    Rejection,
    command_name,
)
from stele.domain.context import Decision as Decided
from stele.domain.context import WorkedOut
from stele.domain.decide import decide
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import NO_LOG, Image
from stele.domain.registry import required_features
from stele.log.apart import Made
from stele.log.codec import encode_epoch
from stele.log.flight import (
    MAX_RECORD_BYTES,
    Records,
    images_after,
    log_id_of_founding,
    too_large,
)
from stele.log.parts import PART_BYTES, in_parts

NO_DIGEST: Final = bytes(16)
"""Of a barrier, which is nobody's command."""
FEW_FACTS: Final = 16
"""Of more a record is only made once it is known that they fit, each by itself."""

replace = msgspec.structs.replace

Fill = Callable[[AnyCommand], AnyCommand]
"""Completes a command with what its caller cannot know; the caller's own words stay what is digested."""


class Ids(msgspec.Struct, frozen=True):
    """Where a writer gets what it may not invent: state ids, its clock."""

    next_state_id: Callable[[bytes], bytes]
    now_ms: Callable[[], int]


def as_it_is(command: AnyCommand) -> AnyCommand:
    return command


class RecordMaker:
    """Of one writer, which neither reads nor decides what needs more than the ``supported`` features."""

    def __init__(self, ids: Ids, supported: Set[str], fill: Fill = as_it_is) -> None:
        self._ids = ids
        self._supported = supported
        self._fill = fill

    def made(
        self, envelope: Envelope, digest: bytes, tip: Image, begin: Image, read: Image
    ) -> Made:
        """Decided on ``tip``, with images from ``begin`` on; changes nothing, and may run in a thread."""
        try:
            records = self._records(envelope, digest, tip, read)
            if isinstance(records, Rejection):
                return records
            return records, list(images_after(begin, records))
        except Exception as error:
            return error

    def _records(
        self, envelope: Envelope, digest: bytes, tip: Image, read: Image
    ) -> Records | Rejection:
        """What a command becomes: one record, or parts and the record that commits them."""
        at_ms, decided_on, worked_out = self._ids.now_ms(), tip, WorkedOut()

        def decide_after(epochs: int) -> Decided:
            after = replace(decided_on, epoch=decided_on.epoch + epochs)
            return decide(after, envelope, at_ms, worked_out, self._supported)

        facts = decide_after(0)
        if isinstance(facts, Rejection):
            return facts
        if len(facts) <= FEW_FACTS:
            record = self.encode(tip, read, envelope, digest, tuple(facts), at_ms)
            if len(record[0]) <= PART_BYTES:
                return [record]
        staging_id = self._ids.next_state_id(tip.state_id).hex()
        split = in_parts(facts, staging_id, decide_after, PART_BYTES)
        if isinstance(split, Rejection):
            return split
        parts, commit = split
        records, nobodys = Records(), replace(envelope, request_id="")
        for part in parts:
            value, epoch = self.encode(tip, read, nobodys, NO_DIGEST, (part,), at_ms)
            records.append((value, epoch))
            tip = replace(tip, epoch=epoch.epoch, state_id=epoch.state_id)
        records.append(self.encode(tip, read, envelope, digest, commit, at_ms))
        largest = max(len(value) for value, _ in records)
        return records if largest <= MAX_RECORD_BYTES else too_large(largest)

    def encode(
        self,
        tip: Image,
        read: Image,
        envelope: Envelope,
        digest: bytes,
        facts: tuple[AnyFact, ...],
        at_ms: int,
        state_id: bytes = b"",
    ) -> tuple[bytes, Epoch]:
        """``read`` is what this writer has seen win, ``at_ms`` the time that was decided by, so that any reader
        can decide again and compare.
        """
        epoch = Epoch(
            prev_state_id=tip.state_id,
            state_id=state_id or self._ids.next_state_id(tip.state_id),
            log_id=tip.log_id if tip.log_id != NO_LOG else log_id_of_founding(facts),
            witness_state_id=read.state_id,
            epoch=tip.epoch + 1,
            witness_epoch=read.epoch,
            request_id=envelope.request_id,
            command=command_name(envelope.command),
            command_digest=digest,
            facts=facts,
            actor=envelope.actor,
            reason=envelope.reason,
            origin=envelope.origin,
            at_ms=at_ms,
            required_features=required_features(facts),
        )
        return encode_epoch(epoch), epoch

    def filled(self, envelope: Envelope) -> Envelope:
        """A command gets what ``fill`` knows, a founding the log's id too, time-ordered as state ids are."""
        command = self._fill(envelope.command)
        if isinstance(command, FoundCluster) and not command.log_id:
            command = replace(command, log_id=self._ids.next_state_id(NO_LOG).hex())
        return replace(envelope, command=command)
