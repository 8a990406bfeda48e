"""Decisions that go in parts: parts change nothing, and their commit all that was decided at once (I2).

The parts of a commit are the epochs right before it, whatever an image says that is staged.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.staging import Part, PartsCommitted, StagingImage
from stele.log.codec import fact_size
from stele_simulator.violation import require

ONE_OUTCOME: Final = "I2"
NOT_OF_THE_STATE: Final = frozenset({"epoch", "state_id", "staging", "decided"})
BESIDE_BYTES: Final = 1000
"""Most bytes of a record beside its facts, names and reasons."""


class PartChecks:
    """Follows one history."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        """Those of the newest epochs, with nothing between them."""

    def follow(self, epoch: Epoch) -> None:
        """Take note of an epoch that was checked, or that was there before anything is."""
        parts = [fact for fact in epoch.facts if isinstance(fact, Part)]
        self._parts = [*self._parts, *parts] if parts else []

    def decided(self, epoch: Epoch) -> tuple[AnyFact, ...]:
        """All that an epoch makes true, in its order. Raises Violation."""
        if not epoch.facts or not isinstance(epoch.facts[0], PartsCommitted):
            return epoch.facts
        commit, *rest = epoch.facts
        assert isinstance(commit, PartsCommitted)
        parts = self._parts[-commit.parts :]
        require(
            [(part.staging_id, part.index) for part in parts]
            == [(commit.staging_id, index) for index in range(commit.parts)],
            ONE_OUTCOME,
            f"epoch {epoch.epoch} follows the {commit.parts} parts that it commits",
            f"before it are {[(part.staging_id, part.index) for part in self._parts]}",
        )
        return (*(fact for part in parts for fact in part.facts), *rest)

    def check(self, before: Image, after: Image, epoch: Epoch) -> None:
        """Raises Violation."""
        if any(isinstance(fact, Part) for fact in epoch.facts):
            require(
                not (changed := list(_changed(before, after))),
                ONE_OUTCOME,
                f"nothing is true by a part, as in epoch {epoch.epoch}",
                f"{', '.join(changed)} changed",
            )
        elif any(isinstance(fact, PartsCommitted) for fact in epoch.facts):
            begin = msgspec.structs.replace(before, staging=StagingImage())
            at_once = evolve(begin, msgspec.structs.replace(epoch, facts=self.decided(epoch)))
            require(
                not (other := list(_changed(at_once, after))),
                ONE_OUTCOME,
                f"epoch {epoch.epoch} makes true what was decided, no matter that it went in parts",
                f"{', '.join(other)} would be otherwise",
            )


def check_size(epoch: Epoch, size_bytes: int, limit_bytes: int) -> None:
    """Check the size of a command's record. Raises Violation."""
    require(
        not epoch.request_id or size_bytes <= limit_bytes,
        ONE_OUTCOME,
        f"no command has a record of more than {limit_bytes} bytes",
        f"epoch {epoch.epoch}, {epoch.command}, has {size_bytes}",
    )


def is_too_large(decision: Iterable[AnyFact], limit_bytes: int) -> bool:
    """One of the facts hardly has room in a record."""
    return max(map(fact_size, decision), default=0) > limit_bytes - BESIDE_BYTES


def _changed(before: Image, after: Image) -> Iterable[str]:
    """Names of the domains that are not the same."""
    for name in before.__struct_fields__:
        if name not in NOT_OF_THE_STATE:
            one, two = getattr(before, name), getattr(after, name)
            if one is not two and one != two:
                yield name
