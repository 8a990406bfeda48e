"""Reading the log: which record wins an epoch, and the image that follows from the winners."""

from typing import Final

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import CorruptRecordError, UnknownFeatureError, UnknownSchemaError
from stele.log.schemas import HEADER_BYTES, load_schemas
from stele.log.state_ids import STATE_ID_BYTES

KNOWN_FEATURES: Final = frozenset[str]()
"""Semantics, beyond the first, that this build can fold."""

_PREVIOUS: Final = slice(HEADER_BYTES, HEADER_BYTES + STATE_ID_BYTES)


class Fold:
    """The image after all records that were offered, in the order of the log.

    The first record whose ``prev_state_id`` is the image's state id wins; all others for that epoch lose
    and are skipped by every reader alike. Offsets have holes, epochs have none.
    """

    def __init__(self, image: Image = EMPTY, next_offset: int = 0) -> None:
        self.image = image
        self.next_offset = next_offset
        self.losers = 0

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        """The winner's epoch, or None for a loser. Raises LogError where a reader must stop."""
        self.next_offset = offset + 1
        if value[:HEADER_BYTES] not in load_schemas().by_header:
            raise self._unreadable(offset, value)
        if value[_PREVIOUS] != self.image.state_id:
            self.losers += 1
            return None
        epoch = self._decode(offset, value)
        unknown = sorted({*epoch.required_features} - KNOWN_FEATURES)
        if unknown:
            raise UnknownFeatureError(
                offset, f"it needs {', '.join(unknown)}. Upgrade this process."
            )
        self.image = evolve(self.image, epoch)
        return epoch

    def adopt(self, offset: int, image: Image) -> None:
        """Take the image that the writer of this winner has computed already."""
        assert image.epoch == self.image.epoch + 1
        self.next_offset = offset + 1
        self.image = image

    def _decode(self, offset: int, value: bytes) -> Epoch:
        try:
            epoch = decode_epoch(value)
        except DecodeError as error:
            raise CorruptRecordError(offset, str(error)) from error
        if epoch.epoch != self.image.epoch + 1:
            found, expected = epoch.epoch, self.image.epoch + 1
            raise CorruptRecordError(offset, f"it says epoch {found} where {expected} follows")
        return epoch

    @staticmethod
    def _unreadable(offset: int, value: bytes) -> CorruptRecordError | UnknownSchemaError:
        if value[:2] != b"\xc3\x01":
            return CorruptRecordError(
                offset, f"it begins with {value[:2].hex() or 'nothing'}, not c301"
            )
        return UnknownSchemaError(
            offset,
            f"no schema has fingerprint {value[2:HEADER_BYTES].hex()}. Upgrade this process.",
        )
