"""What to put into a store, and what of it nobody needs. Pure.

Segments in a store are cut at the same epochs by everybody, whatever the files of a replica are: blocks of
``BLOCK_EPOCHS``, in pieces of ``PIECE_BYTES``. So replicas that share a store find each other's. The newest
block is put as far as it has come, again each time, until it is full; what was put of it before is covered.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from stele.log.archive.spans import Span, joined
from stele.log.archive_store.layout import Contents, Piece, Shot

BLOCK_EPOCHS: Final = 16_384
PIECE_BYTES: Final = 32 * 1024 * 1024
"""Of records, before they are packed."""


def lacking(own: Iterable[Span], there: Iterable[Span], first: int = 1) -> list[Span]:
    """The parts of blocks, of epochs from ``first`` on, that are here and not wholly there, in order."""
    covered = joined(there)
    return [
        part
        for span in own
        if span.last >= first
        for part in _blocks(Span(max(first, span.first), span.last))
        if not any(each.first <= part.first and part.last <= each.last for each in covered)
    ]


def covered(pieces: Iterable[Piece]) -> dict[Piece, Piece]:
    """Pieces all of whose epochs a longer piece of the same log has, and which one."""
    found, longest = dict[Piece, Piece](), dict[str, Piece]()
    for piece in sorted(pieces, key=lambda each: (each.first, -each.last)):
        before = longest.get(piece.log_id)
        if before is None or piece.last > before.last:
            longest[piece.log_id] = piece
        elif (before.first, before.last) != (piece.first, piece.last):
            found[piece] = before
    return found


def base_of(shots: Iterable[Shot], cutoff: int) -> int:
    """The epoch of the newest snapshot before epoch ``cutoff``, from which all later epochs follow; 0: none."""
    return max((shot.epoch for shot in shots if shot.epoch < cutoff), default=0)


def expired(contents: Contents, base: int) -> list[str]:
    """Names of what is not needed for the snapshot of epoch ``base`` and what came after it."""
    names = [piece.name for piece in contents.pieces if piece.last < base]
    for shot in contents.shots:
        if shot.epoch < base:
            names += shot.names
    return names


def _blocks(span: Span) -> Iterator[Span]:
    first = span.first
    while first <= span.last:
        last = (first + BLOCK_EPOCHS - 1) // BLOCK_EPOCHS * BLOCK_EPOCHS
        yield Span(first, min(last, span.last))
        first = last + 1
