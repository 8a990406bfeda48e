"""``evolve(image, epoch) -> Image``: apply an epoch's facts.

Total and deterministic, without decisions.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from stele.domain.base import Fact
from stele.domain.ddl.schema import stamped
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.model.requests import GENERATIONS
from stele.domain.registry import FACTS
from stele.domain.request_memory import remember
from stele.domain.staging import unfolded

replace = msgspec.structs.replace


class Delta(msgspec.Struct, frozen=True):
    """The change of one epoch: the image before it, and its facts.

    Listeners also get the image after it.
    """

    before: Image
    epoch: Epoch

    def facts(self) -> Iterable[Fact]:
        """Return the facts that became true: the epoch's own and those of committed parts."""
        return unfolded(self.before.staging, self.epoch.facts)

    def touches(self, *facts: type) -> bool:
        """Return True when a fact of one of these kinds became true."""
        return any(isinstance(fact, facts) for fact in self.facts())


def evolve(image: Image, epoch: Epoch) -> Image:
    """Return the image after ``epoch``. The fold has checked that it is the next one."""
    assert epoch.prev_state_id == image.state_id
    assert epoch.epoch == image.epoch + 1
    changed = _folded(image, epoch.facts)
    # Decided ids are no facts. Each epoch's ids are noted here, under the limit that it leaves in
    # force.
    decided = image.decided
    if decided is not None:
        settings = changed.get("features", image.features).settings
        changed["decided"] = remember(decided, epoch, GENERATIONS.of(settings))
    if "schema" in changed:
        facts = unfolded(image.staging, epoch.facts)
        enabled = changed.get("features", image.features).enabled
        changed["schema"] = stamped(changed["schema"], epoch, facts, {*enabled})
    changed["epoch"], changed["state_id"] = epoch.epoch, epoch.state_id
    return replace(image, **changed)


def apply_facts(image: Image, facts: Iterable[AnyFact]) -> Image:
    """Return the image with more facts, at the same place in the log.

    Snapshots are read with it too.
    """
    changed = _folded(image, facts)
    return replace(image, **changed) if changed else image


def _folded(image: Image, facts: Iterable[AnyFact]) -> dict[str, Any]:
    """Return the images of the domains that the facts change, by name."""
    changed: dict[str, Any] = {}
    for fact in unfolded(image.staging, facts):
        name, apply = FACTS[type(fact)]
        # Later facts of an epoch build on earlier ones of the same domain.
        before = changed[name] if name in changed else getattr(image, name)
        changed[name] = apply(before, fact)
    return changed
