"""Noop (seed 000): a sign that synchronizes its caller with the coordinator, and changes nothing.

It is done when the coordinator has met it and the version that was in use when it was asked for is fenced: so
the coordinator has seen whatever the log said before, and nobody serves what was routed before that version.
"""

from typing import Final

from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import ended, new_request
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Missing,
    Operation,
    Served,
    fence_missing,
    no_receivers,
    no_sets,
    no_subjects,
    nobody,
    unchanged,
)
from stele.domain.topology.operations.commands import NoopRequest


def noop_request(context: Context, command: NoopRequest) -> Decision:
    return (new_request(context, RequestKind.NOOP_REQUEST),)


def missing(image: Image, request: Request) -> Missing | None:
    return fence_missing(image, request.submitted_epoch)


def done(context: Context, request: Request) -> tuple[AnyFact, ...]:
    return ended(context, context.image, request, RequestStatus.DONE, "")


NOOP_REQUEST: Final = Operation(
    kind=RequestKind.NOOP_REQUEST,
    command=NoopRequest,
    ask=noop_request,
    priority=GLOBAL_PRIORITY,
    first=None,
    states={},
    served=Served(missing=missing, step=done),
    subjects=no_subjects,
    ring_after=unchanged,
    needed=nobody,
    receivers=no_receivers,
    touched=no_sets,
)
