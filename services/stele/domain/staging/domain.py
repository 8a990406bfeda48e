"""The domain of staged parts, entered in the registry. ``evolve`` makes them true with their commit."""

from collections.abc import Iterable

from stele.domain.registry_entry import Domain
from stele.domain.staging.facts import Part, PartsCommitted, StagingFact
from stele.domain.staging.image import StagingImage
from stele.domain.tables import Json


def part(image: StagingImage, fact: Part) -> StagingImage:
    if fact.index == 0:
        return StagingImage(fact.staging_id, (fact.facts,))
    assert (image.staging_id, len(image.parts)) == (fact.staging_id, fact.index)
    return StagingImage(fact.staging_id, (*image.parts, fact.facts))


def parts_committed(_: StagingImage, __: PartsCommitted) -> StagingImage:
    return StagingImage()


def to_facts(image: StagingImage) -> Iterable[StagingFact]:
    for index, facts in enumerate(image.parts):
        yield Part(image.staging_id, index, facts)


def nothing(*_: StagingImage) -> Json:
    """What is staged is not true, so the state does not show it; the history of epochs does."""
    return {}


DOMAIN = Domain(
    name="staging",
    empty=StagingImage(),
    decide={},
    apply={Part: part, PartsCommitted: parts_committed},
    to_facts=to_facts,
    view=nothing,
    diff=nothing,
)
