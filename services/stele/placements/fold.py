"""Fold one cluster's epochs into rows: the ranges that were added and removed. Pure.

The services' own ``evolve`` makes the images. The rows are the differences between two of them.
"""

import msgspec

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.ring.domain import differences
from stele.domain.ring.ranges import RangeReplicas


class Held(msgspec.Struct, frozen=True):
    """A current row and the epoch that added it."""

    row: RangeReplicas
    from_epoch: int


HeldRows = dict[int, Held]
"""The rows of one placement by their start."""


class PastRow(msgspec.Struct, frozen=True):
    """A row that was valid from ``from_epoch`` until before ``to_epoch``."""

    placement: str
    row: RangeReplicas
    from_epoch: int
    to_epoch: int


Key = tuple[str, int]
"""Placement and start of a row."""


class FoldError(Exception):
    """A cluster's epochs contradict each other or its tables.

    The text names them and what to do.
    """


class ClusterFold:
    """The image of one cluster, and its rows with the epochs that added them.

    ``placements`` are the rows in the tables at epoch ``begun``. Epochs up to it change only the
    image.
    """

    def __init__(self, begun: int = 0, placements: dict[str, HeldRows] | None = None) -> None:
        self.image = EMPTY_FOR_FOLLOWERS
        self.begun = begun
        self.placements = placements or {}

    @property
    def behind(self) -> bool:
        """True while the folded events do not reach what the tables hold."""
        return self.image.epoch < self.begun

    def begin(self, image: Image) -> tuple[list[PastRow], set[Key]]:
        """Continue from a snapshot.

        Return as ``apply`` does, without rows that existed only in lost epochs.

        For a row that differs at the snapshot, the old one ended and the new one began there at the
        latest.
        """
        self.image = image
        if image.epoch < self.begun:
            return [], set()
        if image.epoch == self.begun:
            self._check_held()
            return [], set()
        are = {
            (name, row.start): row
            for name, placement in image.ring.placements.items()
            for row in placement.rows
        }
        went = [
            PastRow(name, held.row, held.from_epoch, image.epoch)
            for name, rows in self.placements.items()
            for start, held in rows.items()
            if are.get((name, start)) != held.row
        ]
        for past in went:
            del self.placements[past.placement][past.row.start]
        came = {key for key in are if key[1] not in self.placements.get(key[0], {})}
        for name, start in came:
            self.placements.setdefault(name, {})[start] = Held(are[name, start], image.epoch)
        self.placements = {name: rows for name, rows in self.placements.items() if rows}
        return went, came | {(past.placement, past.row.start) for past in went}

    def apply(self, epoch: Epoch) -> tuple[list[PastRow], set[Key]]:
        """Return the ended rows and the changed keys.

        Raises FoldError, after which the fold is invalid.
        """
        before, self.image = self.image, _evolved(self.image, epoch)
        if epoch.epoch < self.begun:
            return [], set()
        if epoch.epoch == self.begun:
            self._check_held()
            return [], set()
        return self._follow(before)

    def _follow(self, before: Image) -> tuple[list[PastRow], set[Key]]:
        now = self.image.epoch
        went: list[PastRow] = []
        touched: set[Key] = set()
        old, new = before.ring.placements, self.image.ring.placements
        for name in sorted({*old, *new}):
            if old.get(name) is new.get(name):
                continue
            rows = self.placements.setdefault(name, {})
            removed, added = differences(old.get(name), new.get(name))
            went += [PastRow(name, row, rows.pop(row.start).from_epoch, now) for row in removed]
            rows.update((row.start, Held(row, now)) for row in added)
            touched |= {(name, row.start) for row in (*removed, *added)}
            if not rows:
                del self.placements[name]
        return went, touched

    def _check_held(self) -> None:
        held = {
            name: [rows[start].row for start in sorted(rows)]
            for name, rows in self.placements.items()
        }
        placements = self.image.ring.placements
        if held != {name: [*placements[name].rows] for name in placements}:
            raise FoldError(
                f"the table placements holds other rows of epoch {self.begun} than the events make. Remove the "
                "folders of placements and placements_past, then start again: they are rebuilt from the events."
            )


def _evolved(image: Image, epoch: Epoch) -> Image:
    try:
        return evolve(image, epoch)
    except Exception as error:  # a winner that does not fit stops its cluster alone
        raise FoldError(
            f"epoch {epoch.epoch} does not fit the one before: {error!r}. Restore the topic."
        ) from error
