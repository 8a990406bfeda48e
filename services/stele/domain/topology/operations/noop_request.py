"""Noop (seed 000): a sign that synchronizes its caller with the coordinator, and changes nothing.

It is done when the coordinator has met it and the version that was in use when it was asked for is fenced: so
the coordinator has seen whatever the log said before, and nobody serves what was routed before that version.
"""

from typing import Final

from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import new_request
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Missing,
    Operation,
    Served,
    done,
    fence_missing,
    no_sets,
    nobody,
)
from stele.domain.topology.operations.commands import NoopRequest


def noop_request(context: Context, command: NoopRequest) -> Decision:
    return (new_request(context, RequestKind.NOOP_REQUEST),)


def missing(image: Image, request: Request) -> Missing | None:
    return fence_missing(image, request.submitted_epoch)


NOOP_REQUEST: Final = Operation(
    kind=RequestKind.NOOP_REQUEST,
    command=NoopRequest,
    ask=noop_request,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=missing, step=done),
    needed=nobody,
    touched=no_sets,
)
