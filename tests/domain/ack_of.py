"""The ack of a node that has applied and drained everything in an image."""

from __future__ import annotations

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Ack


def ack_of(image: Image, node_id: str, **more: object) -> Ack:
    """Return the ack. ``more`` holds the fields that differ."""
    version = image.topology.version
    ack = Ack(
        node_id=node_id,
        boot_id="1",
        sequence=1,
        epoch=image.epoch,
        version=version,
        fence_version=image.topology.fence_version,
        oldest_version_in_use=version,
        host_id=host_of(image, node_id),
        log_id=image.log_id,
        state_id=image.state_id,
    )
    return msgspec.structs.replace(ack, **more)


def host_of(image: Image, node_id: str) -> str:
    """Return the host id of the node's data directory."""
    node = image.node(node_id)
    return "" if node is None else node.host_id
