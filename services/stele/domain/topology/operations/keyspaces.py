"""What the operations on keyspaces share."""

from collections.abc import Iterable

from stele.domain.base import Rejection
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.ring.facts import PlacementDropped
from stele.domain.schema.facts import Keyspace
from stele.domain.topology.facts import TransitionUnplanned


def free_keyspace(image: Image, name: str) -> Keyspace | Rejection:
    """The keyspace that stands under this name, and that no other request is about."""
    keyspace = image.schema.named(name)
    if keyspace is None:
        return Rejection(
            "unknown_keyspace",
            f"There is no keyspace '{name}'.",
            "`stele keyspace list` shows them.",
        )
    for other in image.requests.unfinished():
        if other.keyspace_id == keyspace.keyspace_id:
            drops = other.kind is RequestKind.DROP_KEYSPACE
            return Rejection(
                "keyspace_being_dropped" if drops else "keyspace_being_altered",
                f"Request {other.request_id} {'drops' if drops else 'alters'} keyspace '{name}' already.",
                f"Wait until it is done, or `stele cancel {other.request_id}`.",
                {"request_id": other.request_id},
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
