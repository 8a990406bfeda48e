"""Which pieces make the history that the newest log has, and which of their epochs. Pure.

A recovered log goes on from an epoch of the one before; what that one had after it was given up, and may still
be in the store. So epochs of an older log count as far as no newer one has any, and as far as a snapshot of a
newer one says that they are in it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from stele.log.archive.spans import LAST_EPOCH, Span, joined
from stele.log.archive_store.layout import Contents, Piece, Shot


class Part(NamedTuple):
    """The epochs ``first`` to ``last`` of a piece."""

    piece: Piece
    first: int
    last: int

    @property
    def is_to_end(self) -> bool:
        """It has the epoch whose state the name of its piece tells."""
        return self.last == self.piece.last


class Past(NamedTuple):
    """Log ``log_id`` has epochs of the logs before it: of each up to one, and of all others none."""

    log_id: str
    ends: Mapping[str, int]

    def end_of(self, log_id: str) -> int:
        """The last epoch of a log that is not known to be given up."""
        return LAST_EPOCH if log_id >= self.log_id else self.ends.get(log_id, 0)


UNKNOWN: Final = Past("", {})
"""No snapshot says what a log has gone on from."""


def history(pieces: Iterable[Piece], past: Past = UNKNOWN) -> list[Part]:
    """What to read, in the order of epochs, each epoch once. Between spans epochs are missing."""
    by_log = dict[str, list[Piece]]()
    for piece in pieces:
        by_log.setdefault(piece.log_id, []).append(piece)
    found, before = list[Part](), LAST_EPOCH
    for log_id in sorted(by_log, reverse=True):
        parts = _of_one_log(by_log[log_id], min(before, past.end_of(log_id) + 1))
        found = parts + found
        before = min((part.first for part in parts), default=before)
    return found


def spans(parts: Iterable[Part]) -> list[Span]:
    """The epochs that can be read."""
    return joined(Span(part.first, part.last) for part in parts)


def own_shots(contents: Contents, past: Past = UNKNOWN) -> tuple[list[Shot], list[Shot]]:
    """Snapshots of this history; and those of older logs of which only the epochs of newer ones can tell."""
    parts = history(contents.pieces, past)
    ends = dict[str, int]()
    for part in parts:
        ends[part.piece.log_id] = max(part.last, ends.get(part.piece.log_id, 0))
    sure, doubtful = list[Shot](), list[Shot]()
    for shot in contents.shots:
        if shot.epoch > past.end_of(shot.log_id):
            continue
        if shot.log_id == contents.logs[-1] or shot.epoch <= ends.get(shot.log_id, 0):
            sure.append(shot)
        elif any(part.first <= shot.epoch <= part.last for part in parts):
            doubtful.append(shot)
    return sure, doubtful


def _of_one_log(pieces: list[Piece], before: int) -> list[Part]:
    """As few as will do, of epochs before ``before`` alone."""
    found, following = list[Part](), 0
    for first, last, piece in sorted((each.first, -each.last, each) for each in pieces):
        end = min(-last, before - 1)
        begin = max(first, following)
        if begin <= end:
            found.append(Part(piece, begin, end))
            following = end + 1
    return found
