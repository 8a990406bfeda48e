"""Make the records of a command: decide it on a state and encode the result. Pure."""

from collections.abc import Callable, Set
from typing import Final

import msgspec

from stele.domain.commands import Envelope, FoundCluster, Rejection, command_name
from stele.domain.context import Decision as Decided
from stele.domain.context import WorkedOut
from stele.domain.decide import decide
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import NO_LOG, Image
from stele.domain.registry import features_of
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
"""The command digest of a barrier, which has no caller."""
FEW_FACTS: Final = 16
"""Up to this many facts are encoded at once to see whether they fit into one record."""

replace = msgspec.structs.replace


class Ids(msgspec.Struct, frozen=True):
    """Sources of nondeterministic values for a writer: state ids and its clock."""

    next_state_id: Callable[[bytes], bytes]
    """Return a new state id that is greater than the given one."""
    now_ms: Callable[[], int]
    """The writer's clock, in milliseconds since 1970."""


class RecordMaker:
    """Makes the records of one writer, with the ``supported`` features only."""

    def __init__(self, ids: Ids, supported: Set[str]) -> None:
        self._ids = ids
        self._supported = supported

    def made(
        self, envelope: Envelope, digest: bytes, tip: Image, begin: Image, read: Image
    ) -> Made:
        """Decide a command on ``tip``; return its records and the image after each, from ``begin``.

        ``read`` is the applied image, which the records name as their witness. A founding gets a new
        log id, which is ordered by time as state ids are. Returns a rejection when the command is
        refused, and the exception when it fails. Changes nothing, so it may run in a thread.
        """
        try:
            command = envelope.command
            if isinstance(command, FoundCluster) and not command.log_id:
                log_id = self._ids.next_state_id(NO_LOG).hex()
                envelope = replace(envelope, command=replace(command, log_id=log_id))
            records = self._records(envelope, digest, tip, read)
            if isinstance(records, Rejection):
                return records
            return records, list(images_after(begin, records))
        except Exception as error:
            return error

    def _records(
        self, envelope: Envelope, digest: bytes, tip: Image, read: Image
    ) -> Records | Rejection:
        """Return the records of a command: one, or parts and the record that commits them."""
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
        # The command is decided again for each number of parts: facts name the epoch that makes
        # them true, and ``worked_out`` keeps the costly results of the first decision.
        staging_id = self._ids.next_state_id(tip.state_id).hex()
        split = in_parts(facts, staging_id, decide_after, PART_BYTES)
        if isinstance(split, Rejection):
            return split
        parts, commit = split
        records, nobodys = Records(), replace(envelope, request_id="")
        for part in parts:
            value, epoch = self.encode(tip, read, nobodys, NO_DIGEST, (part,), at_ms)
            records.append((value, epoch))
            # Each part takes an epoch, so the next record must follow it.
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
        """Encode the epoch after ``tip``; return its bytes and the epoch.

        ``read`` is the last image that this writer has read, named as the witness. ``at_ms`` is the
        time of the decision in milliseconds, so that any reader can decide again and compare.
        ``state_id`` is a new id if empty.
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
            required_features=features_of(facts).required,
        )
        return encode_epoch(epoch), epoch
