"""Quiesce: wait until all earlier requests are finished (``quiesce_topology`` in ScyllaDB).

It is done under three conditions. No earlier request is open or pending, the version that the last
of them made is fenced, and no node has anything to clean up. Later requests neither wait for it nor
delay it, with one exception: a later operation that marks a node for cleanup. It changes nothing,
and can be cancelled until it is done.
"""

from typing import Final

from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.operations import Quiesce
from stele.domain.model.requests import Request
from stele.domain.names import RequestKind
from stele.domain.rules.requests import new_request
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    MissingCondition,
    Operation,
    Served,
    done,
    fence_missing,
    no_sets,
    nobody,
)


def quiesce(context: Context, command: Quiesce) -> Decision:
    return (new_request(context, RequestKind.QUIESCE),)


def missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the first condition that does not hold yet."""
    found = (condition(image, request) for condition in CONDITIONS)
    return next((each for each in found if each is not None), None)


def earlier_requests(image: Image, request: Request) -> MissingCondition | None:
    earlier = [
        f"{other.kind} ({other.request_id})"
        for other in image.requests.unfinished()
        if other.submitted_epoch < request.submitted_epoch
    ]
    return MissingCondition(f"earlier requests: {', '.join(earlier)}") if earlier else None


def their_fence(image: Image, request: Request) -> MissingCondition | None:
    ends = [
        other.finished_epoch
        for other in image.requests.finished()
        if other.submitted_epoch < request.submitted_epoch
    ]
    # An earlier request may have ended after this one was sent, with a newer version.
    return fence_missing(image, max([request.submitted_epoch, *ends]))


def cleanups(image: Image, request: Request) -> MissingCondition | None:
    dirty = tuple(n for n, node in image.membership.normal().items() if node.cleanup_since)
    return MissingCondition(f"cleanup by {', '.join(dirty)}", dirty) if dirty else None


CONDITIONS: Final = (earlier_requests, their_fence, cleanups)
"""The conditions of rest. An empty plan of the tablet balancer belongs here, too."""

QUIESCE: Final = Operation(
    kind=RequestKind.QUIESCE,
    command=Quiesce,
    ask=quiesce,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=missing, step=done),
    needed=nobody,
    touched=no_sets,
)
