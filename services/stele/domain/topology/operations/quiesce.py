"""Quiesce (seed 000): wait until all that was asked for before has come to rest.

It is done at the first look at which no earlier request is open or pending, the version that the last of them
made is fenced, and no node has anything to clean up. What is asked for later neither waits for it nor holds it
up, but for this: a node that another operation marks for cleanup once more has not cleaned up. It changes
nothing, so it can be cancelled until it is done.
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
from stele.domain.topology.operations.commands import Quiesce


def quiesce(context: Context, command: Quiesce) -> Decision:
    return (new_request(context, RequestKind.QUIESCE),)


def missing(image: Image, request: Request) -> Missing | None:
    """The first of the conditions that does not hold yet."""
    found = (condition(image, request) for condition in CONDITIONS)
    return next((each for each in found if each is not None), None)


def earlier_requests(image: Image, request: Request) -> Missing | None:
    earlier = [
        f"{other.kind} ({other.request_id})"
        for other in image.requests.unfinished()
        if other.submitted_epoch < request.submitted_epoch
    ]
    return Missing(f"what was asked for before: {', '.join(earlier)}") if earlier else None


def their_fence(image: Image, request: Request) -> Missing | None:
    ends = [
        other.finished_epoch
        for other in image.requests.finished()
        if other.submitted_epoch < request.submitted_epoch
    ]
    return fence_missing(image, max([request.submitted_epoch, *ends]))


def cleanups(image: Image, request: Request) -> Missing | None:
    dirty = tuple(n for n, node in image.membership.normal().items() if node.cleanup_since)
    return Missing(f"cleanup by {', '.join(dirty)}", dirty) if dirty else None


CONDITIONS: Final = (earlier_requests, their_fence, cleanups)
"""What rest means. The balancer's plan of tablets being empty belongs here too."""

QUIESCE: Final = Operation(
    kind=RequestKind.QUIESCE,
    command=Quiesce,
    ask=quiesce,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=missing, step=done),
    needed=nobody,
    touched=no_sets,
)
