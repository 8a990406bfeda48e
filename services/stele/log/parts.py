"""Split decisions too large for one record into parts and a commit (docs/design.md, rule 7)."""

from collections.abc import Callable, Iterator
from typing import Final, cast

from stele.domain.base import Rejection
from stele.domain.context import Decision
from stele.domain.facts import AnyFact
from stele.domain.staging import Part, PartsCommitted, StagedFact
from stele.log.codec import fact_size

PART_BYTES: Final = 4 * 1024 * 1024
"""Target size of the facts in one record, in bytes. It is half of the limit of a record, so one
fact more still fits."""

Facts = tuple[AnyFact, ...]
DecideAfter = Callable[[int], Decision]
"""Return the decision as it is after the given number of further epochs."""


def in_parts(
    facts: Facts, staging_id: str, decide_after: DecideAfter, part_bytes: int
) -> tuple[list[Part], Facts] | Rejection:
    """Split a decision into parts and the facts of the record that commits them.

    Facts name the epoch that makes them true, which follows the parts. Therefore the command is
    decided again for that epoch. If it then needs one more part, it is decided once more. If it
    needs fewer, empty parts are sent. Returns a rejection when a later decision refuses the
    command.
    """
    sizes = _Sizes()
    groups, parts = list(_groups(facts, part_bytes, sizes)), 0
    while len(groups) - 1 > parts:
        parts = len(groups) - 1
        decision = decide_after(parts)
        if isinstance(decision, Rejection):
            return decision
        groups = list(_groups(decision, part_bytes, sizes))
    if parts == 0:
        return [], facts
    *staged, rest = groups
    staged += [()] * (parts - len(staged))
    found = [
        Part(staging_id, index, cast("tuple[StagedFact, ...]", group))
        for index, group in enumerate(staged)
    ]
    return found, (PartsCommitted(staging_id, parts), *rest)


class _Sizes:
    """Cache of the sizes of facts, in bytes.

    Most facts of the second decision are the same objects as those of the first.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[AnyFact, int]] = {}

    def of(self, fact: AnyFact) -> int:
        known = self._known.get(id(fact))
        # The fact is kept beside its size: a freed object could pass its id on to another fact.
        if known is None:
            known = self._known[id(fact)] = fact, fact_size(fact)
        return known[1]


def _groups(facts: Facts, part_bytes: int, sizes: _Sizes) -> Iterator[Facts]:
    """Yield the facts in order, in groups of at most ``part_bytes`` unless it is a single fact."""
    group, size = list[AnyFact](), 0
    for fact in facts:
        more = sizes.of(fact)
        if group and size + more > part_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(fact)
        size += more
    yield tuple(group)
