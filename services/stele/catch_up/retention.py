"""Which snapshots stay: the newest, and some of the older ones, from which the past is folded. Pure."""

from collections.abc import Set
from typing import Final

OLDER: Final = 32
"""Of a log of ten million epochs the past is then folded from 300,000 epochs before, at most."""


def forgotten(
    epochs: list[int], newest: int, older: int = OLDER, needed: Set[int] = frozenset()
) -> list[int]:
    """Those of the snapshots that go, of which ``newest`` stay in any case, and those that are ``needed``; the
    oldest first.

    Of the others every second one goes, and of what is left then, until no more than ``older`` are there.
    """
    ordered = sorted(epochs)
    rest = ordered[:-newest] if newest else ordered
    kept = rest
    while len(kept) > older:
        kept = kept[::2]
    return [epoch for epoch in rest if epoch not in {*kept, *needed}]
