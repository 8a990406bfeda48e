"""Known bugs of splits and merges: what they wait for, what they keep, and when they are wanted no more."""

from typing import Any, Final

import msgspec
import numpy as np

from stele.domain.base import Rejection
from stele.domain.column import Ints
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.names import RequestKind
from stele.domain.ring.columns import Rows
from stele.domain.ring.placement import Placement
from stele.domain.tablets import maps
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, change_operation, planted

replace = msgspec.structs.replace
_RESIZE: Final = RequestKind.TABLET_RESIZE


@planted(STORY)
def resize_does_not_wait_for_migrations(patch: Patch) -> None:
    """The new map comes while tablets of the old one move."""
    plain = OPERATIONS[_RESIZE].plans
    assert plain is not None

    def unlocked(image: Image, requests: list[Request]) -> Any:
        found = plain(image, requests)
        if isinstance(found, Rejection):
            return found
        return {name: replace(plan, locks=()) for name, plan in found.items()}

    change_operation(patch, _RESIZE, plans=unlocked)


@planted(STORY)
def siblings_that_are_apart_become_one(patch: Patch) -> None:
    """A merge does not wait until both tablets are on the same nodes."""
    change_operation(patch, _RESIZE, held=OPERATIONS[RequestKind.TRUNCATE].held)


@planted(STORY, rule="I3")
def new_tablets_forget_their_versions(patch: Patch) -> None:
    """After a resize late requests are served by the replicas that their tablet had before."""
    plain = maps.resized

    def forgetful(placement: Placement, count: int) -> Rows:
        rows = plain(placement, count)
        _, _, *replicas = rows.values
        never = np.zeros(len(rows), np.int64)
        return Rows(rows.keys, (never, never, *replicas))

    patch.function(plain, forgetful)


@planted(STORY, rule="I3")
def merged_tablet_has_the_version_of_the_first(patch: Patch) -> None:
    """A merged tablet forgets the newest change of its second half."""

    def first(versions: Ints, versions_before: Ints) -> tuple[Ints, Ints]:
        return versions[::2], versions_before[::2]

    patch.attribute(maps, "_versions_of_both", first)
