"""The domain of overrides, entered in the registry."""

from collections.abc import Iterable

import msgspec

from stele.domain.names import OverrideKind
from stele.domain.overrides.commands import LoadState, RevertState
from stele.domain.overrides.decide import load_state, revert_state
from stele.domain.overrides.facts import Override, OverridesImage, StateReplaced
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields, row_json


def state_replaced(image: OverridesImage, fact: StateReplaced) -> OverridesImage:
    if fact.override.kind is OverrideKind.FOUND:
        return msgspec.structs.replace(image, begun_with=fact.override)
    return msgspec.structs.replace(image, last=fact.override)


def to_facts(image: OverridesImage) -> Iterable[StateReplaced]:
    for override in (image.begun_with, image.last):
        if override is not None:
            yield StateReplaced(override)


def view(image: OverridesImage) -> Json:
    return {"overrides": image}


def diff(before: OverridesImage, after: OverridesImage) -> Json:
    fields = changed_fields(_fields(before.last), _fields(after.last))
    return {
        "overrides": fields or changed_fields(_fields(before.begun_with), _fields(after.begun_with))
    }


def _fields(override: Override | None) -> Json:
    return {} if override is None else row_json(override)


DOMAIN = Domain(
    name="overrides",
    empty=OverridesImage(),
    decide={RevertState: revert_state, LoadState: load_state},
    apply={StateReplaced: state_replaced},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
