"""Which records of one cluster became epochs: judged by their first bytes, and only winners decoded. Pure."""

from typing import Final

import msgspec

from stele.domain.facts import Epoch
from stele.domain.image import ZERO_STATE
from stele.domain.registry import KNOWN_FEATURES
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import CorruptRecordError, LogError, UnknownFeatureError, UnknownSchemaError
from stele.log.schemas import HEADER_BYTES
from stele.log.state_ids import STATE_ID_BYTES

FIRST_BYTES: Final = HEADER_BYTES + 2 * STATE_ID_BYTES
"""The bytes that the rule below looks at."""
_PREVIOUS: Final = slice(HEADER_BYTES, HEADER_BYTES + STATE_ID_BYTES)
_STATE: Final = slice(HEADER_BYTES + STATE_ID_BYTES, FIRST_BYTES)


class Head(msgspec.Struct, frozen=True):
    """Where the table of events stands in one cluster's log; ``next_offset`` is not judged yet."""

    next_offset: int = 0
    epoch: int = 0
    state_id: bytes = ZERO_STATE


FRESH: Final = Head()


class HoleError(LogError):
    """Records before this one were not delivered."""


def wins(head: Head, _offset: int, first_bytes: bytes) -> bool:
    """The winner rule: the first record whose ``prev_state_id`` is the current state id wins."""
    return first_bytes[_PREVIOUS] == head.state_id


def is_record_of(head: Head, first_bytes: bytes) -> bool:
    """Whether these are the first bytes of the record that made the head's state."""
    return first_bytes[_STATE] == head.state_id


class Chain:
    """Follows one cluster's log from a head. ``stopped`` says why it must not go on; None while it may."""

    def __init__(self, head: Head) -> None:
        self.start = self.head = head
        self.stopped: LogError | None = None

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        """The winner's epoch; None for a loser, for a record that was judged before, and once stopped."""
        if self.stopped is not None or offset < self.head.next_offset:
            return None
        try:
            return self._offer(offset, value)
        except LogError as error:
            self.stopped = error
            return None

    def _offer(self, offset: int, value: bytes) -> Epoch | None:
        head = self.head
        if offset > head.next_offset:
            raise HoleError(
                offset,
                f"records {head.next_offset} to {offset - 1} were not delivered. If they are gone, "
                "restore the topic or the table events, then start this service again.",
            )
        if not wins(head, offset, value[:FIRST_BYTES]):
            self.head = Head(offset + 1, head.epoch, head.state_id)
            return None
        epoch = _decode(offset, value)
        if epoch.epoch != head.epoch + 1:
            text = f"it says epoch {epoch.epoch} where {head.epoch + 1} follows. Restore the topic."
            raise CorruptRecordError(offset, text)
        unknown = sorted({*epoch.required_features} - KNOWN_FEATURES)
        if unknown:
            needs = f"it needs {', '.join(unknown)}. Upgrade this process."
            raise UnknownFeatureError(offset, needs)
        self.head = Head(offset + 1, epoch.epoch, epoch.state_id)
        return epoch


def _decode(offset: int, value: bytes) -> Epoch:
    try:
        return decode_epoch(value)
    except DecodeError as error:
        if error.unknown_schema:
            raise UnknownSchemaError(offset, f"{error}. Upgrade this process.") from error
        raise CorruptRecordError(
            offset, f"{error}. Restore the topic, then start again."
        ) from error
