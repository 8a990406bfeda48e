"""States that are kept: the newest ones, which share what did not change, and a few of the past.

What an image costs beside those that are kept already differs: one move copies one chunk of a large table, a
round of moves copies many, and a state of the past that was read shares nothing. So bytes are limited too.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from stele.domain.image import Image
from stele.domain.ring.columns import Chunk, Columns

NEWEST: Final = 1024
OLDER: Final = 12
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of the columns of either kind."""
LEAST: Final = 2
"""So many stay whatever they cost: what differs between two epochs needs both."""
CHUNK_BYTES: Final = 6_000
"""What a chunk costs beside its columns: views of them, and what reads single rows."""


class Images:
    """By epoch. Forgets the oldest of the newest, and of the past those that were asked for longest ago."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.newest = _Limited(NEWEST, most_bytes)
        self.older = _Limited(OLDER, most_bytes)

    def add(self, image: Image) -> None:
        """The newest state."""
        self.newest.put(image)

    def keep(self, image: Image) -> None:
        """One of the past that was read."""
        self.older.put(image)

    def get(self, epoch: int) -> Image | None:
        found = self.newest.get(epoch)
        return self.older.used(epoch) if found is None else found

    def before(self, epoch: int, reach: int) -> Image | None:
        """The newest state of the ``reach`` epochs before this one, from which it is folded."""
        known = [e for e in (*self.newest, *self.older) if epoch - reach <= e < epoch]
        return self.get(max(known)) if known else None


class _Limited:
    """Images in order, and ``bytes``: those of all their columns, each that is shared counted once."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._images: OrderedDict[int, Image] = OrderedDict()
        self._held: dict[int, int] = {}
        """How many hold a table or a chunk, by its identity: whatever is here lives as long."""
        self.bytes = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._images)

    def __len__(self) -> int:
        return len(self._images)

    def get(self, epoch: int) -> Image | None:
        return self._images.get(epoch)

    def used(self, epoch: int) -> Image | None:
        """The same, which keeps it longer."""
        if epoch in self._images:
            self._images.move_to_end(epoch)
        return self._images.get(epoch)

    def put(self, image: Image) -> None:
        before = self._images.pop(image.epoch, None)
        self._images[image.epoch] = image
        self._count(image, 1)
        if before is not None:
            self._count(before, -1)
        while len(self) > self._most or (self.bytes > self._most_bytes and len(self) > LEAST):
            self._count(self._images.popitem(last=False)[1], -1)

    def _count(self, image: Image, more: int) -> None:
        for placement in image.ring.placements.values():
            table = placement.table
            if self._is_alone(table, more):
                for chunk in table.chunks:
                    if self._is_alone(chunk, more):
                        self.bytes += more * _bytes(chunk)

    def _is_alone(self, part: Columns | Chunk, more: int) -> bool:
        """Count one holder more or fewer; whether it is the first, or was the last."""
        were = self._held.get(id(part), 0)
        if were + more:
            self._held[id(part)] = were + more
        else:
            del self._held[id(part)]
        return not (were if more > 0 else were + more)


def _bytes(chunk: Chunk) -> int:
    rows = chunk.rows
    return CHUNK_BYTES + rows.keys.nbytes + sum(column.nbytes for column in rows.values)
