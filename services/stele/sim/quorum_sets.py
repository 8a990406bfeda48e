"""Do quorums meet? By trying all sets of answers, against the production rules of quorums."""

from collections.abc import Callable, Set
from functools import cache
from itertools import combinations

from stele.domain.ring import quorum
from stele.domain.ring.ranges import RangeReplicas

Sides = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Readers, writers, and the readers on the other side of a move."""
Rule = Callable[[Set[str], RangeReplicas], bool]


def quorums_meet(written: Sides, read: Sides) -> bool:
    """Every set of acks that satisfies a write by one row leaves too few others to read by the other."""
    return _meet(written, read, quorum.write_satisfied, quorum.read_satisfied)


@cache
def as_row(sides: Sides) -> RangeReplicas:
    reads, writes, other = sides
    return RangeReplicas(0, 1, reads, writes, other=other)


@cache
def _meet(written: Sides, read: Sides, write_rule: Rule, read_rule: Rule) -> bool:
    writer, reader = as_row(written), as_row(read)
    for size in range(len(writer.writes) + 1):
        for acks in combinations(writer.writes, size):
            rest = set(reader.reads) - set(acks)
            if write_rule(set(acks), writer) and read_rule(rest, reader):
                return False
    return True
