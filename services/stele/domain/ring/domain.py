"""The domain of placements, entered in the registry."""

from collections.abc import Iterable

import msgspec
from immutables import Map

from stele.domain.hashing import HASH_BYTES, MODULUS, row_hash
from stele.domain.registry_entry import Domain
from stele.domain.ring.differences import differences
from stele.domain.ring.facts import NodeNumbered, PlacementChanged, PlacementDropped, RingFact
from stele.domain.ring.image import RingImage
from stele.domain.ring.packed import unpacked
from stele.domain.ring.placement import Placement, changed
from stele.domain.tables import Json, row_json

replace = msgspec.structs.replace


def node_numbered(image: RingImage, fact: NodeNumbered) -> RingImage:
    return replace(image, nodes=image.nodes.with_node(fact.number, fact.node_id))


def placement_changed(image: RingImage, fact: PlacementChanged) -> RingImage:
    before = image.placement(fact.placement)
    after = changed(before, unpacked(fact.removed, fact.added, image.nodes))
    return replace(image, placements=image.placements.set(fact.placement, after))


def placement_dropped(image: RingImage, fact: PlacementDropped) -> RingImage:
    return replace(image, placements=image.placements.delete(fact.placement))


def to_facts(image: RingImage) -> Iterable[RingFact]:
    numbered = RingImage(nodes=image.nodes)
    for number, node_id in enumerate(image.nodes.names):
        yield NodeNumbered(number, node_id)
    for name in sorted(image.placements):
        yield from numbered.creation(name, image.placements[name])


def hash_of(image: RingImage) -> int:
    """Of the rows by their chunks, which remember theirs; the numbers are those of facts, the same
    everywhere.
    """
    total = row_hash(",".join(image.nodes.names).encode())
    for name, placement in image.placements.items():
        rows = placement.table.hash_sum().to_bytes(HASH_BYTES, "big")
        total += row_hash(name.encode() + rows)
    return total % MODULUS


def view(image: RingImage) -> Json:
    return {"placements": {n: image.placements[n].rows for n in sorted(image.placements)}}


def diff(before: RingImage, after: RingImage) -> Json:
    return {"placements": _changed(before.placements, after.placements)}


def delta(before: RingImage, after: RingImage, facts: Iterable[object]) -> Json:
    """By name, how many rows went and came: an epoch may change very many, and carries them all. It does so in
    pieces; a row that two of them share is counted in each.
    """
    changed: Json = {}
    for fact in facts:
        if isinstance(fact, PlacementChanged):
            counts = changed.setdefault(fact.placement, {"added": 0, "removed": 0})
            counts["added"] += len(fact.added)
            counts["removed"] += len(fact.removed)
        elif isinstance(fact, PlacementDropped):
            rows = before.placements.get(fact.placement, ())
            changed[fact.placement] = {"added": 0, "removed": len(rows)}
    for name in changed.keys() - {*before.placements} & {*after.placements}:
        changed[name] = {"added": len(after.placements[name]), "removed": 0}
    return {"placements": changed}


def _changed(before: Map[str, Placement], after: Map[str, Placement]) -> Json:
    """By name, only those that differ: {added: [row], removed: [row]} in ring order."""
    changed: Json = {}
    for name in sorted({*before, *after}):
        removed, added = differences(before.get(name), after.get(name))
        if removed or added:
            changed[name] = {
                "added": [row_json(row) for row in added],
                "removed": [row_json(row) for row in removed],
            }
    return changed


DOMAIN = Domain(
    name="ring",
    empty=RingImage(),
    decide={},
    apply={
        NodeNumbered: node_numbered,
        PlacementChanged: placement_changed,
        PlacementDropped: placement_dropped,
    },
    to_facts=to_facts,
    view=view,
    diff=diff,
    hash=hash_of,
    delta=delta,
)
