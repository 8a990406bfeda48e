"""What the operations on keyspaces share."""

from collections.abc import Iterable

from stele.domain.base import Rejection
from stele.domain.context import unknown_keyspace
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.ring.facts import PlacementDropped
from stele.domain.schema.facts import Keyspace
from stele.domain.topology.facts import TransitionUnplanned


def free_keyspace(image: Image, name: str) -> Keyspace | Rejection:
    """The keyspace that stands under this name, and that no other request is about."""
    keyspace = image.schema.named(name)
    if keyspace is None:
        return unknown_keyspace(name)
    for other in image.requests.unfinished():
        if other.keyspace_id == keyspace.keyspace_id:
            return Rejection(
                "request_in_progress",
                f"Request {other.request_id} ({other.kind}) is about keyspace '{keyspace.name}'.",
                f"Wait until it is done: `stele request follow {other.request_id}`; or cancel it.",
                {"request_id": other.request_id, "kind": other.kind},
            )
    return keyspace


def left_placement(image: Image, keyspace: Keyspace) -> Iterable[AnyFact]:
    """The keyspace does not use its placement any more, which goes when nobody else does."""
    if len(image.schema.using(keyspace.placement)) > 1:
        return
    yield PlacementDropped(keyspace.placement)
    for other in image.topology.open():
        if keyspace.placement in other.plans:
            yield TransitionUnplanned(other.transition_id, keyspace.placement)
