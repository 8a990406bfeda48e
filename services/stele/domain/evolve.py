"""``evolve(image, epoch) -> Image``: make an epoch's facts true. Total, deterministic, no decisions."""

from collections.abc import Iterable
from typing import Any

import msgspec

from stele.domain.base import Fact
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.registry import FACTS
from stele.domain.requests.decided import remember
from stele.domain.requests.limits import GENERATIONS
from stele.domain.staging.image import unfolded

replace = msgspec.structs.replace


class Delta(msgspec.Struct, frozen=True):
    """What one epoch changed: the image before it, and its facts. Listeners get it with the image after."""

    before: Image
    epoch: Epoch

    def facts(self) -> Iterable[Fact]:
        """What became true: the epoch's facts, and those of the parts that it commits."""
        return unfolded(self.before.staging, self.epoch.facts)

    def touches(self, *facts: type) -> bool:
        """True when one of these kinds of facts became true."""
        return any(isinstance(fact, facts) for fact in self.facts())


def evolve(image: Image, epoch: Epoch) -> Image:
    """The image after ``epoch``, which must be the next one: the log's fold checks that before."""
    assert epoch.prev_state_id == image.state_id
    assert epoch.epoch == image.epoch + 1
    changed = _folded(image, epoch.facts)
    decided = image.decided
    if decided is not None:
        settings = changed.get("features", image.features).settings
        changed["decided"] = remember(decided, epoch, GENERATIONS.of(settings))
    changed["epoch"], changed["state_id"] = epoch.epoch, epoch.state_id
    return replace(image, **changed)


def apply_facts(image: Image, facts: Iterable[AnyFact]) -> Image:
    """The image with more facts, at the same place in the log; also how a snapshot is read back."""
    changed = _folded(image, facts)
    return replace(image, **changed) if changed else image


def _folded(image: Image, facts: Iterable[AnyFact]) -> dict[str, Any]:
    """The images of the domains that the facts change, by name."""
    changed: dict[str, Any] = {}
    for fact in unfolded(image.staging, facts):
        name, apply = FACTS[type(fact)]
        before = changed[name] if name in changed else getattr(image, name)
        changed[name] = apply(before, fact)
    return changed
