"""Spans: ranges of the data of one keyspace or table."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from stele.domain.ring.ranges import Range
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN


class Span(NamedTuple):
    """A range of one keyspace, which stands here by its data's id: what was truncated away is another."""

    keyspace: str
    start: int
    end: int

    def bounds(self) -> tuple[str, int, int]:
        """A range's end MIN_TOKEN is infinity (domain.ring.ranges)."""
        return self.keyspace, self.start, MAX_TOKEN if self.end == MIN_TOKEN else self.end

    def split(self, parts: int) -> "list[Span]":
        """So many spans of equal width, or one for each token; together they are this one."""
        _, start, end = self.bounds()
        parts = min(parts, end - start)
        cuts = [start + (end - start) * at // parts for at in range(1, parts)]
        return [Span(self.keyspace, *cut) for cut in pairwise((self.start, *cuts, self.end))]


def spans_of(keyspaces: Sequence[str], ranges: Sequence[Range]) -> list[Span]:
    """Every range of every keyspace."""
    return [Span(keyspace, r.start, r.end) for keyspace in keyspaces for r in ranges]
