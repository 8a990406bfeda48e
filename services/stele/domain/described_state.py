"""A state as its facts and the rows of its placements, such as a file that a person has edited."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from immutables import Map

from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.requests import DecidedFact
from stele.domain.model.ring import RingFact, RingImage
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.snapshot import image_to_facts
from stele.domain.soundness import MOST, Flaw, flaws_of, number_flaws, row_flaws
from stele.domain.staging import StagingFact

replace = msgspec.structs.replace


class Placed(NamedTuple):
    """A fact that is no row of a placement, and its place in the file, for people."""

    fact: AnyFact
    place: str


class Described(NamedTuple):
    """A state at ``epoch``, whose id is ``state_id``.

    ``numbers`` are the nodes in the order of their numbers. Other nodes get the next ones.
    """

    epoch: int
    state_id: bytes
    facts: Sequence[Placed]
    numbers: tuple[str, ...]
    placements: Mapping[str, Sequence[RangeReplicas]]


class Checked(NamedTuple):
    """The result of a check. ``image`` is None if the facts do not describe a state."""

    image: Image | None
    flaws: tuple[Flaw, ...]


def described(image: Image) -> Described:
    """Return a state without decided requests and staged parts.

    Another log has no use for these.
    """
    facts = image_to_facts(image)
    return Described(
        image.epoch,
        image.state_id,
        [
            Placed(fact, "")
            for fact in facts
            if not isinstance(fact, RingFact | DecidedFact | StagingFact)
        ],
        image.ring.nodes.names,
        {name: image.ring.placements[name].rows for name in sorted(image.ring.placements)},
    )


def checked(state: Described) -> Checked:
    """Return the image and all flaws in it.

    If the facts make no image, only their flaws are returned.
    """
    flaws = [*_twice(state.facts), *_numbered_twice(state.numbers)]
    if not 0 <= state.epoch <= MOST:
        flaws.append(Flaw("epoch", f"there is none with the number {str(state.epoch)[:40]}"))
    for name in sorted(state.placements):
        flaws += row_flaws(name, state.placements[name])
    if flaws:
        return Checked(None, tuple(flaws))
    # Facts are folded one by one, so that each flaw names the fact that causes it.
    image = replace(EMPTY_FOR_FOLLOWERS, epoch=state.epoch, state_id=state.state_id)
    for fact, place in state.facts:
        flaws += (Flaw(place, what) for what in number_flaws(fact))
        try:
            image = apply_facts(image, (fact,))
        except (KeyError, ValueError, AssertionError, OverflowError) as error:
            named = f" names {error.args[0]}, which" if isinstance(error, KeyError) else ""
            flaws.append(
                Flaw(place, f"{type(fact).__name__}{named} does not follow from what is before it")
            )
    if flaws:
        return Checked(None, tuple(flaws))
    image = replace(image, ring=_ring(state))
    return Checked(image, tuple(flaws_of(image)))


def _ring(state: Described) -> RingImage:
    names = (
        node
        for name in sorted(state.placements)
        for row in state.placements[name]
        for node in (*row.writes, *row.other)
    )
    numbers = NodeNumbers(state.numbers).with_nodes(names)
    made = {
        name: Placement.of(sorted(rows, key=lambda row: row.start), numbers)
        for name, rows in state.placements.items()
    }
    return RingImage(Map(made), numbers)


def _numbered_twice(names: Sequence[str]) -> Iterator[Flaw]:
    for name, times in sorted(Counter(names).items()):
        if times > 1:
            yield Flaw("numbers", f"node {name} is there {times} times")


def _twice(facts: Sequence[Placed]) -> Iterator[Flaw]:
    """Yield the rows of entities that occur twice.

    The later row would otherwise count without a warning.
    """
    places: dict[tuple[str, str], str] = {}
    for fact, place in facts:
        key = _key(fact)
        if key is None:
            continue
        if key in places:
            yield Flaw(place, f"{key[0]} {key[1]} is there already, in {places[key]}")
        places.setdefault(key, place)


def _key(fact: AnyFact) -> tuple[str, str] | None:
    """Return the entity that the fact is the row of; None for facts that may come in pieces."""
    fields = fact.__struct_fields__
    if len(fields) != 1:
        return None
    row = getattr(fact, fields[0])
    ids = [name for name in getattr(row, "__struct_fields__", ()) if name.endswith("_id")]
    return (fields[0], getattr(row, ids[0])) if ids and ids[0] == f"{fields[0]}_id" else None
