"""Decisions that are too large for one record: parts, and the record that commits them (design, 1, rule 7)."""

from collections.abc import Callable, Iterator
from typing import Final, cast

from stele.domain.base import Rejection
from stele.domain.context import Decision
from stele.domain.facts import AnyFact
from stele.domain.staging.facts import Part, PartsCommitted, StagedFact
from stele.log.codec import fact_size

PART_BYTES: Final = 4 * 1024 * 1024
"""Of the facts of a record: half of what a record may have, so that a fact more does no harm."""

Facts = tuple[AnyFact, ...]
DecideAfter = Callable[[int], Decision]
"""Decides as it will be decided after so many more epochs."""


def in_parts(
    facts: Facts, staging_id: str, decide_after: DecideAfter, part_bytes: int
) -> tuple[list[Part], Facts] | Rejection:
    """The parts of a large decision, and what the record that commits them holds.

    Facts name the epoch that makes them true, which comes after the parts: so the command is decided again for
    that epoch. Should it then need a part more, once more; a part less, and an empty one is sent.
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
    """Bytes of facts. Most of those of the second decision are the very ones of the first."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[AnyFact, int]] = {}

    def of(self, fact: AnyFact) -> int:
        known = self._known.get(id(fact))
        if known is None:
            known = self._known[id(fact)] = fact, fact_size(fact)
        return known[1]


def _groups(facts: Facts, part_bytes: int, sizes: _Sizes) -> Iterator[Facts]:
    """The facts in their order, each group at most so large unless it is a single fact."""
    group, size = list[AnyFact](), 0
    for fact in facts:
        more = sizes.of(fact)
        if group and size + more > part_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(fact)
        size += more
    yield tuple(group)
