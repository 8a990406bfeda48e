"""Ids as people read them: their beginnings, which other commands take for the whole."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from stele.words.names import ID

LEAST: Final = 13
"""Characters: of an id with a time in it these are the milliseconds, ``01a202f7-4959``."""
MOST_KNOWN: Final = 10_000
"""Ids that are told apart: whoever follows the log for weeks does not keep all of them."""


class ShortIds:
    """Each id is as long as it takes to differ from all that were met before it."""

    def __init__(self) -> None:
        self._known = list[str]()

    def shortened(self, texts: Sequence[str]) -> list[str]:
        """The texts with short ids, which differ in all of them."""
        for text in texts:
            self._learn(text)
        return [ID.sub(lambda found: self._short(found[0]), text) for text in texts]

    def _learn(self, text: str) -> None:
        for found in ID.finditer(text):
            at = bisect_left(self._known, found[0])
            if self._known[at : at + 1] != [found[0]]:
                insort(self._known, found[0])
        if len(self._known) > MOST_KNOWN:
            self._known.clear()

    def _short(self, id_: str) -> str:
        at = bisect_left(self._known, id_)
        beside = (*self._known[max(0, at - 1) : at], *self._known[at + 1 : at + 2])
        length = max((_differs_at(id_, other) for other in beside), default=0) + 1
        return id_[: max(LEAST, length)]


def _differs_at(one: str, other: str) -> int:
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
