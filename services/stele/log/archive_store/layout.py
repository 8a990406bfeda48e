"""What blobs are called. A name says which epochs of which history a blob holds, so that all who write to one
store write the same under the same name. Pure.

    stele.json                                              whose store this is: ``claim``
    logs/<log id>/segments/<first>-<last>-<state id>.avro   epochs, the last of which made this state
    logs/<log id>/snapshots/<epoch>-<state id>.avro         the facts that are true at an epoch
    logs/<log id>/snapshots/<epoch>-<state id>-decided.avro the memory of decided requests beside them

Epochs have 20 digits, ids are hex. The log is that of the last epoch; it may have been recovered from another
one, some of whose epochs a segment then begins with.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from stele.log.blobs.port import Blob

DIGITS: Final = 20
_LOG: Final = r"logs/([0-9a-f]{32})"
_SEGMENT: Final = re.compile(_LOG + r"/segments/(\d{20})-(\d{20})-([0-9a-f]{32})\.avro")
_SNAPSHOT: Final = re.compile(_LOG + r"/snapshots/(\d{20})-([0-9a-f]{32})(-decided)?\.avro")


class Piece(NamedTuple):
    """A segment in a store: epochs ``first`` to ``last``, the last of which is of log ``log_id``."""

    log_id: str
    first: int
    last: int
    state_id: str

    @property
    def name(self) -> str:
        epochs = f"{self.first:0{DIGITS}}-{self.last:0{DIGITS}}"
        return f"logs/{self.log_id}/segments/{epochs}-{self.state_id}.avro"


class Shot(NamedTuple):
    """A snapshot in a store."""

    log_id: str
    epoch: int
    state_id: str

    @property
    def stem(self) -> str:
        """As a replica calls it."""
        return f"{self.epoch:0{DIGITS}}-{self.state_id}"

    @property
    def name(self) -> str:
        return f"logs/{self.log_id}/snapshots/{self.stem}.avro"

    @property
    def decided_name(self) -> str:
        return f"logs/{self.log_id}/snapshots/{self.stem}-decided.avro"

    @property
    def names(self) -> tuple[str, str]:
        """Of both files."""
        return self.name, self.decided_name


class Contents(NamedTuple):
    """What a store lists: pieces and snapshots in order, and the sizes of all blobs by name."""

    pieces: tuple[Piece, ...]
    shots: tuple[Shot, ...]
    """Those of which both files are there."""
    sizes: dict[str, int]

    @property
    def logs(self) -> list[str]:
        """Ids of the logs whose epochs these are, the oldest first: ids of logs are ordered by time."""
        of_pieces = {piece.log_id for piece in self.pieces}
        return sorted(of_pieces | {shot.log_id for shot in self.shots})


def contents_of(blobs: Iterable[Blob]) -> Contents:
    """What is known of these names; others are left alone."""
    pieces, sizes = list[Piece](), dict[str, int]()
    files = defaultdict[Shot, int](int)
    for name, size_bytes in blobs:
        sizes[name] = size_bytes
        if (found := _SEGMENT.fullmatch(name)) is not None:
            log_id, first, last, state_id = found.groups()
            pieces.append(Piece(log_id, int(first), int(last), state_id))
        elif (found := _SNAPSHOT.fullmatch(name)) is not None:
            log_id, epoch, state_id, _ = found.groups()
            files[Shot(log_id, int(epoch), state_id)] += 1
    shots = (shot for shot, count in files.items() if count == 2)
    return Contents(tuple(sorted(pieces)), tuple(sorted(shots)), sizes)
