"""What every decision is made from, and what it may come to."""

import uuid
from typing import Final, NamedTuple

from stele.domain.commands import Envelope, Rejection
from stele.domain.facts import AnyFact
from stele.domain.image import Image

Decision = tuple[AnyFact, ...] | Rejection

_SESSIONS: Final = uuid.UUID("7d1f4f0e-5b1c-4c63-9a3e-6f0a7c2b9e11")


class Context(NamedTuple):
    """The image before, the command's envelope, and the writer's clock for people (ms)."""

    image: Image
    envelope: Envelope
    at_ms: int

    @property
    def epoch(self) -> int:
        """The epoch that this command becomes if it is applied."""
        return self.image.epoch + 1

    def new_session(self) -> str:
        """Id of a session that opens in this epoch; an epoch opens one at most, so it is unique."""
        return str(uuid.uuid5(_SESSIONS, f"{self.image.cluster_id}/{self.epoch}"))


def unknown_request(request_id: str) -> Rejection:
    return Rejection(
        "unknown_request",
        f"There is no topology request '{request_id}'.",
        "`stele requests` lists them.",
    )


def unknown_node(node_id: str) -> Rejection:
    return Rejection(
        "unknown_node", f"There is no node '{node_id}'.", "`stele nodes` lists the nodes."
    )
