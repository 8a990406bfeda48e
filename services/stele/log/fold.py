"""Fold the log: compute the image from the winners. ``chain`` decides which record wins."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.cluster import LogRecovered
from stele.domain.recovery import recovery_of
from stele.domain.registry import KNOWN_FEATURES
from stele.log.chain import FROZEN, STOPS, Anchor, Chain, Verdict
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    LostWinnersError,
    MissedRecordsError,
    NoBeginningError,
    RecoveredError,
    UnknownFeatureError,
    UnknownSchemaError,
)
from stele.log.schemas import HEADER_BYTES, load_schemas

FOUNDING_EPOCH: Final = 1


class Start(NamedTuple):
    """An image with the position in the log that belongs to it."""

    image: Image
    next_offset: int = 0
    """Offset of the first record that is not in the image."""
    anchor: Anchor | None = None
    """The winner that the image ends with; None at the beginning."""
    before: tuple[Anchor, ...] = ()
    """Winners of this log before the anchor, oldest first, as far as they are known."""


BEGINNING: Final = Start(EMPTY)
BEGINNING_FOR_FOLLOWERS: Final = Start(EMPTY_FOR_FOLLOWERS)


class Fold:
    """The image after all records that were offered, in the order of the log.

    Every reader skips losers, whatever their schema. Records of another log are skipped and
    counted. Offsets may have a gap only where the log was read again: ``chain.jump``.

    A fold stops at the recovery of its log. With ``across_recoveries``, for replays of the past, it
    continues as the recovered log if that log continues from the state of the fold.

    ``supported`` are the features of the reading process. A winner that needs others stops it.
    """

    def __init__(
        self,
        image: Image = EMPTY,
        next_offset: int = 0,
        anchor: Anchor | None = None,
        before: Sequence[Anchor] = (),
        *,
        across_recoveries: bool = False,
        supported: Set[str] = KNOWN_FEATURES,
    ) -> None:
        self.image = image
        self.supported = supported
        self._across_recoveries = across_recoveries
        self.chain = Chain(image.log_id, image.epoch, image.state_id, next_offset, anchor, before)

    @property
    def next_offset(self) -> int:
        return self.chain.next_offset

    @property
    def losers(self) -> int:
        return self.chain.losers

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        """Apply a record; return the winner's epoch, or None for a loser or a stray.

        Raises LogError where a reader must stop.
        """
        verdict = self.chain.judge(offset, value)
        if verdict is Verdict.WINNER:
            return self._win(offset, value, decode_winner(offset, value, self.supported))
        if verdict in STOPS:
            raise stopped_by(self.chain, verdict, offset, value)
        if verdict is Verdict.STRAY and self._across_recoveries:
            epoch = continuation(self.chain, offset, value)
            if epoch is not None:
                return self._win(offset, value, epoch)
        elif verdict is Verdict.STRAY:
            check_stray(self.chain, offset, value)
        self.chain.skip(offset, value, verdict)
        return None

    def adopt(self, offset: int, value: bytes, image: Image) -> None:
        """Advance to a winner whose image its writer has already computed."""
        assert image.epoch == self.image.epoch + 1
        self.chain.win(offset, value)
        self.image = image

    def _win(self, offset: int, value: bytes, epoch: Epoch) -> Epoch:
        # ``evolve`` first: if it raises, the chain still names the last epoch that was applied.
        self.image = evolve(self.image, epoch)
        self.chain.win(offset, value)
        return epoch


def decode_winner(offset: int, value: bytes, supported: Set[str] = KNOWN_FEATURES) -> Epoch:
    """Decode a winner. Raises LogError if a process with these features cannot read it."""
    try:
        epoch = decode_epoch(value)
    except DecodeError as error:
        # A known schema means broken bytes; an unknown one means that this build is too old.
        if value[:HEADER_BYTES] in load_schemas().by_header:
            raise CorruptRecordError(offset, str(error)) from error
        text = f"no schema has fingerprint {value[2:HEADER_BYTES].hex()}. Upgrade this process."
        raise UnknownSchemaError(offset, text) from error
    unknown = sorted({*epoch.required_features} - supported) if epoch.required_features else []
    if unknown:
        text = f"it needs {', '.join(unknown)}, which this build does not support. Upgrade this process."
        raise UnknownFeatureError(offset, text)
    return epoch


def stopped_by(chain: Chain, verdict: Verdict, offset: int, value: bytes) -> LogError:
    """Return the error for a suspicious record that a reader cannot skip."""
    if verdict is Verdict.HOLE:
        text = f"offset {chain.next_offset} should follow. Read the records in between again."
        return MissedRecordsError(offset, text)
    _, _, log_id, _, epoch, witness = FROZEN.unpack_from(value)
    if verdict is Verdict.NO_BEGINNING:
        return NoBeginningError(
            offset,
            f"epoch {epoch} of log {log_id.hex()} stands where a log should begin. Begin with a snapshot, or"
            " restore the topic from a copy that has all of it.",
        )
    return LostWinnersError(
        offset,
        f"its writer had read an epoch {witness} of log {chain.log_id.hex()} that is not in this history,"
        f" which is at epoch {chain.epoch}: winners were lost. Restore the topic from a copy that has them.",
    )


# Interpret records of a later log (docs/decisions/027-recovery.md and docs/design.md, rule 13).
#
# Log ids are ordered by time, so a log recovered from this one has a greater id. The first 90 bytes
# of its first record show only another log, which readers skip. The facts inside show that the
# reader's own log ended there.


def check_stray(chain: Chain, offset: int, value: bytes) -> None:
    """Return if a record that was judged a stray may be skipped.

    Raises RecoveredError when the reader's log continues as another log from here or from an
    earlier record. Raises UnknownSchemaError when this build cannot read the record.
    """
    fact = recovered_from(chain.log_id, offset, value)
    if fact is not None:
        raise _recovered_error(offset, chain, fact)


def continuation(chain: Chain, offset: int, value: bytes) -> Epoch | None:
    """Return the epoch that continues the chain under another log id; None for other strays.

    Raises as ``check_stray`` does for a recovery from any other state.
    """
    fact = recovered_from(chain.log_id, offset, value)
    if fact is None:
        return None
    here = chain.log_id.hex(), chain.epoch, chain.state_id.hex()
    if (fact.from_log_id, fact.last_epoch, fact.state_id) != here:
        raise _recovered_error(offset, chain, fact)
    return decode_epoch(value)


def recovered_from(log_id: bytes, offset: int, value: bytes) -> LogRecovered | None:
    """Return the fact that this log or a later one was recovered; None for any other record.

    Raises UnknownSchemaError for a record of a later log that this build cannot read, because it
    may be a recovery.
    """
    _, _, other, _, epoch, _ = FROZEN.unpack_from(value)
    if other <= log_id or epoch <= FOUNDING_EPOCH:
        return None  # a record of an older log, or a founding that lost the race
    try:
        fact = recovery_of(decode_epoch(value))
    except DecodeError as error:
        if not error.unknown_schema:
            return None
        text = f"it is of log {other.hex()}, a later one, and unreadable: {error}. Upgrade this process."
        raise UnknownSchemaError(offset, text) from error
    # A recovery of a log older than this one came too late, and is skipped as any stray.
    return fact if fact is not None and fact.from_log_id >= log_id.hex() else None


def is_of_later_log(log_id: bytes, value: bytes) -> bool:
    """Return whether a record shows that a later log is written here.

    A founding, or a recovery that came too late, does not show it.
    """
    _, _, other, _, epoch, _ = FROZEN.unpack_from(value)
    if other <= log_id or epoch <= FOUNDING_EPOCH:
        return False
    try:
        return recovery_of(decode_epoch(value)) is None
    except DecodeError:
        return True


def _recovered_error(offset: int, chain: Chain, fact: LogRecovered) -> RecoveredError:
    own, lost = chain.epoch, ""
    if fact.from_log_id == chain.log_id.hex():
        if own > fact.last_epoch:
            lost = f" Epochs {fact.last_epoch + 1} to {own}, which this process had read, are not in it."
        elif own == fact.last_epoch and chain.state_id.hex() != fact.state_id:
            lost = f" Its epoch {own} is another one than this process had read."
    text = (
        f"log {fact.from_log_id} was recovered here, and continues after epoch {fact.last_epoch} as log"
        f" {fact.log_id}.{lost} Readers of that start from a snapshot: restart this process."
    )
    return RecoveredError(offset, fact, text)
