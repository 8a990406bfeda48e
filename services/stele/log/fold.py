"""Reading the log: the image that follows from the winners. Which record wins is ``chain``'s to say."""

from collections.abc import Sequence, Set

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.chain import FROZEN, STOPS, Anchor, Chain, Verdict
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    LostWinnersError,
    MissedRecordsError,
    NoBeginningError,
    UnknownFeatureError,
    UnknownSchemaError,
)
from stele.log.incarnations import check_stray, crossing
from stele.log.schemas import HEADER_BYTES, load_schemas


class Fold:
    """The image after all records that were offered, in the order of the log.

    Losers are skipped by every reader alike, whatever schema they were written with; records of another
    log are skipped and counted. Offsets have holes only where the log was asked again: ``chain.jump``.

    A log that was recovered ends there. With ``across_recoveries`` the fold goes on as the log that it became,
    if that goes on from the very state that the fold is at: for those who replay the past.

    ``supported`` are the features that the reading process supports: a winner that needs others stops it.
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
        """The winner's epoch, or None for a loser or a stray. Raises LogError where a reader must stop."""
        verdict = self.chain.judge(offset, value)
        if verdict is Verdict.WINNER:
            return self._win(offset, value, decode_winner(offset, value, self.supported))
        if verdict in STOPS:
            raise stopped_by(self.chain, verdict, offset, value)
        if verdict is Verdict.STRAY and self._across_recoveries:
            epoch = crossing(self.chain, offset, value)
            if epoch is not None:
                return self._win(offset, value, epoch)
        elif verdict is Verdict.STRAY:
            check_stray(self.chain, offset, value)
        self.chain.skip(offset, value, verdict)
        return None

    def adopt(self, offset: int, value: bytes, image: Image) -> None:
        """Take the image that the writer of this winner has computed already."""
        assert image.epoch == self.image.epoch + 1
        self.chain.win(offset, value)
        self.image = image

    def _win(self, offset: int, value: bytes, epoch: Epoch) -> Epoch:
        self.image = evolve(self.image, epoch)
        self.chain.win(offset, value)
        return epoch


def decode_winner(offset: int, value: bytes, supported: Set[str] = KNOWN_FEATURES) -> Epoch:
    """Raises LogError for a winner that a process which supports these features cannot read."""
    try:
        epoch = decode_epoch(value)
    except DecodeError as error:
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
    """The error for a suspicious record that a reader cannot go past."""
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
