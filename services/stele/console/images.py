"""States that are kept: the newest ones, which share nearly everything, and a few of the past."""

from collections import OrderedDict
from typing import Final

from stele.domain.image import Image

NEWEST: Final = 1024
OLDER: Final = 12


class Images:
    """By epoch. Forgets the oldest of the newest, and of the past those that were asked for longest ago."""

    def __init__(self) -> None:
        self._newest: OrderedDict[int, Image] = OrderedDict()
        self._older: OrderedDict[int, Image] = OrderedDict()

    def add(self, image: Image) -> None:
        """The newest state."""
        self._newest[image.epoch] = image
        if len(self._newest) > NEWEST:
            self._newest.popitem(last=False)

    def keep(self, image: Image) -> None:
        """One of the past that was read."""
        self._older[image.epoch] = image
        self._older.move_to_end(image.epoch)
        if len(self._older) > OLDER:
            self._older.popitem(last=False)

    def get(self, epoch: int) -> Image | None:
        found = self._newest.get(epoch)
        if found is None and epoch in self._older:
            self._older.move_to_end(epoch)
            found = self._older[epoch]
        return found

    def before(self, epoch: int, reach: int) -> Image | None:
        """The newest state of the ``reach`` epochs before this one, from which it is folded."""
        known = [e for e in (*self._newest, *self._older) if epoch - reach <= e < epoch]
        return self.get(max(known)) if known else None

    def clear(self) -> None:
        """It is another history."""
        self._newest.clear()
        self._older.clear()
