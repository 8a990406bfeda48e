"""ComputedAnswers states: the newest ones, which share unchanged parts, and a few of the past.

The cost of one more image varies. One move copies one chunk of a large table, and a round of moves
copies many. A past state that was read shares nothing. Bytes are therefore limited too.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from stele.domain.image import Image
from stele.domain.ring.columns import Chunk, Columns

NEWEST: Final = 1024
OLDER: Final = 12
MOST_BYTES: Final = 256 * 1024 * 1024
"""Limit of the bytes of all columns, for each of the two kinds."""
LEAST: Final = 2
"""Images that stay whatever they cost. A diff between two epochs needs both."""
CHUNK_BYTES: Final = 6_000
"""Cost of a chunk in addition to its columns: views of them and readers of single rows."""


class Images:
    """Images by epoch.

    The oldest of the newest, and the least recently used past ones, are dropped.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.newest = _Limited(NEWEST, most_bytes)
        self.older = _Limited(OLDER, most_bytes)

    def add(self, image: Image) -> None:
        """Keep the newest state."""
        self.newest.put(image)

    def keep(self, image: Image) -> None:
        """Keep a past state that was read."""
        self.older.put(image)

    def get(self, epoch: int) -> Image | None:
        found = self.newest.get(epoch)
        return self.older.used(epoch) if found is None else found

    def before(self, epoch: int, reach: int) -> Image | None:
        """Return the newest kept state of the ``reach`` epochs before ``epoch``, to fold from."""
        known = [e for e in (*self.newest, *self.older) if epoch - reach <= e < epoch]
        return self.get(max(known)) if known else None


class _Limited:
    """Images in order. ``bytes`` is the size of all columns; shared ones count once."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._images: OrderedDict[int, Image] = OrderedDict()
        self._held: dict[int, int] = {}
        """Number of images that hold a table or chunk, by its ``id()``. The images here keep it
        alive, so the id is not reused."""
        self.bytes = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._images)

    def __len__(self) -> int:
        return len(self._images)

    def get(self, epoch: int) -> Image | None:
        return self._images.get(epoch)

    def used(self, epoch: int) -> Image | None:
        """Return an image and mark it as recently used."""
        if epoch in self._images:
            self._images.move_to_end(epoch)
        return self._images.get(epoch)

    def put(self, image: Image) -> None:
        before = self._images.pop(image.epoch, None)
        self._images[image.epoch] = image
        self._count(image, 1)
        # The new image is counted before the old one is removed, so that shared chunks stay
        # counted.
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
        """Add or remove one holder.

        Return True for the first one added and the last one removed.
        """
        were = self._held.get(id(part), 0)
        if were + more:
            self._held[id(part)] = were + more
        else:
            del self._held[id(part)]
        return not (were if more > 0 else were + more)


def _bytes(chunk: Chunk) -> int:
    rows = chunk.rows
    return CHUNK_BYTES + rows.keys.nbytes + sum(column.nbytes for column in rows.values)
