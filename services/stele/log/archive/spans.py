"""Which epochs there are: spans of them, and what is missing between."""

import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

LAST_EPOCH: Final = 1 << 62
"""Of a log that has not ended."""


class NotArchivedError(LookupError):
    """An epoch that should be there is not: it is before the first, or in a gap."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        super().__init__(f"Epoch {epoch} is not in this archive.")


class Span(NamedTuple):
    """Epochs ``first`` to ``last``, both included."""

    first: int
    last: int


def joined(spans: Iterable[Span]) -> list[Span]:
    """Spans without overlaps, neighbours as one."""
    found = list[Span]()
    for first, last in sorted(spans):
        if found and first <= found[-1].last + 1:
            found[-1] = Span(found[-1].first, max(last, found[-1].last))
        else:
            found.append(Span(first, last))
    return found


def gaps(spans: Iterable[Span]) -> list[Span]:
    """What is missing between spans."""
    found = joined(spans)
    return [Span(a.last + 1, b.first - 1) for a, b in itertools.pairwise(found)]
