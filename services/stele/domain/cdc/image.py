"""The CDC generations at one epoch, by id."""

from itertools import pairwise

import msgspec
from immutables import Map

from stele.domain.cdc.heads import GenerationHead, GenerationSummary
from stele.domain.cdc.streams import count_of, ends_of


class Generation(GenerationHead, frozen=True, kw_only=True):
    """``streams`` are its ids behind each other: see ``streams.py``."""

    streams: bytes = b""

    def fits(self, tokens: set[int]) -> bool:
        """It has exactly the ranges of a ring with these tokens."""
        return tokens == {*ends_of(self.streams).tolist()}


class CdcImage(msgspec.Struct, frozen=True):
    generations: Map[str, Generation] = Map()

    def committed(self) -> list[Generation]:
        """In the order in which they come to hold."""
        found = [g for g in self.generations.values() if g.committed_epoch]
        return sorted(found, key=lambda generation: generation.since_ms)

    def unpublished(self) -> list[Generation]:
        """Those that are committed, in the order in which they come to hold."""
        return [generation for generation in self.committed() if not generation.published]

    def newest(self) -> Generation | None:
        """The committed one that holds last."""
        return next(reversed(self.committed()), None)

    def of_transition(self, transition_id: str) -> Generation | None:
        """The one that was written for a transition and is not committed yet."""
        for generation in self.generations.values():
            if generation.transition_id == transition_id and not generation.committed_epoch:
                return generation
        return None

    def obsolete(self, now_ms: int, retention_s: int) -> list[Generation]:
        """Those whose successor is published and has held for longer than the retention at ``now_ms``."""
        committed = self.committed()
        latest_ms = now_ms - 1000 * retention_s
        return [
            before
            for before, after in pairwise(committed)
            if after.published and after.since_ms < latest_ms
        ]


def summary_of(generation: Generation) -> GenerationSummary:
    head = {name: getattr(generation, name) for name in GenerationHead.__struct_fields__}
    return GenerationSummary(**head, streams=count_of(generation.streams))
