"""Judge which record wins: the only implementation of docs/design.md, rule 1, on raw bytes.

The first 90 bytes of every record never change, so any build judges any record, even one whose
schema it does not have (rule 14):

    header 10, prev_state_id 16, state_id 16, log_id 16, witness_state_id 16, epoch 8, witness_epoch 8

Numbers are big-endian. The verdict depends on the offset and the first 90 bytes only, not on Kafka
or a clock.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from stele.domain.image import NO_LOG, ZERO_STATE
from stele.log.errors import CorruptRecordError

MAGIC: Final = b"\xc3\x01"
FROZEN_BYTES: Final = 90
STATE_BYTES: Final = 16
KEPT_STATES: Final = 65_536
"""Number of the newest state ids kept to compare witnesses with. They take 1 MiB."""
DIGEST_BYTES: Final = 16

PREV_STATE_ID: Final = slice(10, 26)
STATE_ID: Final = slice(26, 42)
LOG_ID: Final = slice(42, 58)
FROZEN: Final = Struct(">10x16s16s16s16sQQ")
FROZEN_FIELDS: Final = (
    "prev_state_id",
    "state_id",
    "log_id",
    "witness_state_id",
    "epoch",
    "witness_epoch",
)
assert FROZEN.size == FROZEN_BYTES
_unpack: Final = FROZEN.unpack_from


class Verdict(StrEnum):
    """Verdict on a record. All but the first two raise suspicion (docs/design.md, rule 11)."""

    WINNER = "winner"
    LOSER = "loser"
    STRAY = "stray"
    """A record of another log. It is skipped once the anchor is known to be intact, unless this log
    was recovered as that log (``fold.check_stray``).
    """
    HOLE = "hole"
    """A record behind a gap: offsets before it were not read."""
    LOST_WINNERS = "lost_winners"
    """A record whose writer had read a winner of this log that this history lacks."""
    NO_BEGINNING = "no_beginning"
    """A later epoch where a log should begin: the epochs before it are missing."""


_WINNER: Final = Verdict.WINNER
_LOSER: Final = Verdict.LOSER
PLAIN: Final = (_WINNER, _LOSER)
"""Verdicts without suspicion."""
STOPS: Final = (Verdict.HOLE, Verdict.LOST_WINNERS, Verdict.NO_BEGINNING)
"""Verdicts that a reader cannot go past."""


RECENT: Final = 16
"""Number of anchors kept of each kind: more than one writer has records in flight."""


class Anchor(NamedTuple):
    """Offset and digest of a record that was read, usually of the last winner."""

    offset: int
    digest: bytes


def digest_of(value: bytes) -> bytes:
    """Return the BLAKE2b digest of a record, 16 bytes."""
    return blake2b(value, digest_size=DIGEST_BYTES).digest()


def anchor_of(offset: int, value: bytes) -> Anchor:
    return Anchor(offset, digest_of(value))


class Anchors:
    """Anchors of the last ``RECENT`` records of one kind. Digests are computed on demand."""

    def __init__(self, known: Sequence[Anchor] = ()) -> None:
        self.new: deque[tuple[int, bytes]] = deque(maxlen=RECENT)
        """Offsets and values without a digest yet. The owner appends to it."""
        self._known: deque[Anchor] = deque(known, RECENT)

    def clear(self) -> None:
        self.new.clear()
        self._known.clear()

    def all(self) -> tuple[Anchor, ...]:
        """Return the anchors, oldest first, as many as are known."""
        self._known.extend(anchor_of(offset, value) for offset, value in self.new)
        self.new.clear()
        return tuple(self._known)


class Chain:
    """The chain of winners up to ``epoch``. ``offer`` it every record, in order of offsets."""

    def __init__(
        self,
        log_id: bytes = NO_LOG,
        epoch: int = 0,
        state_id: bytes = ZERO_STATE,
        next_offset: int = 0,
        anchor: Anchor | None = None,
        before: Sequence[Anchor] = (),
    ) -> None:
        self.log_id = log_id
        self.epoch = epoch
        self.state_id = state_id
        self.next_offset = next_offset
        self.losers = 0
        self.strays = 0
        # A ring buffer of state ids: epoch E is at (E - _first_kept) % KEPT_STATES.
        self._first_kept = epoch
        self._kept = bytearray(state_id)
        self._won = Anchors(() if anchor is None else (*before, anchor))
        self._passed = Anchors()

    @property
    def recent(self) -> tuple[Anchor, ...]:
        """Anchors of the last winners of this log, oldest first, as many as are known."""
        return self._won.all()

    @property
    def passed(self) -> tuple[Anchor, ...]:
        """Anchors of the last losers and strays, oldest first.

        If the topic lost one, another record may have its offset, which was not read and may have
        won.
        """
        return self._passed.all()

    @property
    def anchor(self) -> Anchor | None:
        """The anchor of the last winner; None before the first one."""
        recent = self.recent
        return recent[-1] if recent else None

    def state_id_of(self, epoch: int) -> bytes | None:
        """Return the state id of ``epoch``; None when it is no longer kept or not yet read."""
        oldest = max(self._first_kept, self.epoch - KEPT_STATES + 1)
        if not oldest <= epoch <= self.epoch:
            return None
        place = (epoch - self._first_kept) % KEPT_STATES * STATE_BYTES
        return bytes(self._kept[place : place + STATE_BYTES])

    def judge(self, offset: int, value: bytes) -> Verdict:
        """Return the verdict on the record at ``offset``, without a change of the chain.

        Raises CorruptRecordError.
        """
        if len(value) < FROZEN_BYTES or value[:2] != MAGIC:
            raise _no_record(offset, value)
        if offset != self.next_offset:
            return Verdict.HOLE
        if self.epoch == 0:
            return self._judge_founding(offset, value)
        # The order of the checks matters: the witness and prev_state_id of another log mean nothing
        # here, and a record that proves lost winners must not pass as a winner or a loser.
        previous, _, log_id, witness_state_id, epoch, witness = _unpack(value)
        if log_id != self.log_id:
            return Verdict.STRAY
        if not self._has_witness(witness, witness_state_id):
            return Verdict.LOST_WINNERS
        if previous != self.state_id:
            return _LOSER
        if epoch != self.epoch + 1:
            raise _out_of_order(offset, epoch, self.epoch + 1)
        return _WINNER

    def offer(self, offset: int, value: bytes) -> Verdict:
        """Judge a record, and move past a winner, a loser or a stray. Raises CorruptRecordError."""
        verdict = self.judge(offset, value)
        if verdict is Verdict.WINNER:
            self.win(offset, value)
        elif verdict in (Verdict.LOSER, Verdict.STRAY):
            self.skip(offset, value, verdict)
        return verdict

    def win(self, offset: int, value: bytes) -> None:
        """Move past a record that was judged a winner."""
        log_id = value[LOG_ID]
        if log_id != self.log_id:  # offsets of the earlier log do not apply to this one
            self.log_id = log_id
            self._won.clear()
            self._passed.clear()
        self.epoch = epoch = self.epoch + 1
        self.state_id = state_id = value[STATE_ID]
        self.next_offset = offset + 1
        self._won.new.append((offset, value))
        place = (epoch - self._first_kept) % KEPT_STATES * STATE_BYTES
        self._kept[place : place + STATE_BYTES] = state_id

    def skip(self, offset: int, value: bytes, verdict: Verdict) -> None:
        """Move past a loser or a stray."""
        self.next_offset = offset + 1
        self._passed.new.append((offset, value))
        if verdict is Verdict.STRAY:
            self.strays += 1
        else:
            self.losers += 1

    def jump(self, offset: int) -> None:
        """Continue at ``offset``: the log was read again and holds no records before it."""
        self.next_offset = offset

    def _has_witness(self, witness: int, state_id: bytes) -> bool:
        """Return False if this history lacks the witness. One older than the kept ids passes."""
        if witness < self._first_kept or witness <= self.epoch - KEPT_STATES:
            return True
        place = (witness - self._first_kept) % KEPT_STATES * STATE_BYTES
        return witness <= self.epoch and self._kept[place : place + STATE_BYTES] == state_id

    def _judge_founding(self, offset: int, value: bytes) -> Verdict:
        previous, _, log_id, _, epoch, _ = _unpack(value)
        if previous != ZERO_STATE or log_id == NO_LOG:
            return Verdict.NO_BEGINNING if epoch > 1 else Verdict.STRAY
        if epoch != 1:
            raise _out_of_order(offset, epoch, 1)
        return Verdict.WINNER


def _out_of_order(offset: int, found: int, expected: int) -> CorruptRecordError:
    return CorruptRecordError(offset, f"it says epoch {found} where {expected} follows")


def _no_record(offset: int, value: bytes) -> CorruptRecordError:
    if value[:2] != MAGIC:
        found = value[:2].hex() or "nothing"
        return CorruptRecordError(offset, f"it begins with {found}, not c301")
    return CorruptRecordError(offset, f"it has {len(value)} bytes; a record has {FROZEN_BYTES}")
