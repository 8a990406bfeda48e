"""Do quorums meet? By trying all sets of answers, by the rules of quorums as they are meant, written out here.
And does production ask for just as much?
"""

from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from itertools import combinations

from stele.domain.ring import quorum
from stele.domain.ring.ranges import RangeReplicas

Sides = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Readers, writers, and the readers on the other side of a move."""
Rule = Callable[[Set[str], RangeReplicas], bool]
STRANGER = "nobody's replica"


def read_is_done(answers: Set[str], sides: Sides) -> bool:
    """More than half of the readers have answered."""
    readers, _, _ = sides
    return 2 * len(answers & {*readers}) > len(readers)


def write_is_done(acks: Set[str], sides: Sides) -> bool:
    """More than half of the readers have it, and of those on the other side of a move."""
    _, _, others = sides
    return read_is_done(acks, sides) and (not others or 2 * len(acks & {*others}) > len(others))


@cache
def quorums_meet(written: Sides, read: Sides) -> bool:
    """Every set of acks that is enough for a write by one row leaves too few others to read by the other."""
    _, writers, _ = written
    readers = {*read[0]}
    return not any(
        write_is_done(acks, written) and read_is_done(readers - acks, read)
        for acks in _sets(writers)
    )


def asks_for_another_number(sides: Sides) -> str:
    """Return where production's rules differ from the exact number of a quorum; empty if they agree."""
    return _differs(sides, quorum.write_satisfied, quorum.read_satisfied, quorum.quorum_of)


@cache
def _differs(sides: Sides, write_rule: Rule, read_rule: Rule, _: Callable[[int], int]) -> str:
    """Compare with production. Results are cached by rule and arguments."""
    readers, writers, others = sides
    row = RangeReplicas(0, 1, readers, writers, other=others)
    for answers in _sets((*dict.fromkeys((*readers, *writers)), STRANGER)):
        for what, done, meant in (
            ("write", write_rule(answers, row), write_is_done(answers, sides)),
            ("read", read_rule(answers, row), read_is_done(answers, sides)),
        ):
            if done != meant:
                return f"a {what} with {sorted(answers)} is {'done' if done else 'not done'}"
    return ""


def _sets(names: Sequence[str]) -> Iterator[set[str]]:
    for size in range(len(names) + 1):
        for chosen in combinations(names, size):
            yield {*chosen}
