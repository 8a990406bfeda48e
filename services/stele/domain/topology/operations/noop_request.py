"""Noop: synchronize a caller with the coordinator, and change nothing (``noop_request`` in
ScyllaDB).

It is done when the coordinator has read it and the version that was in use at the request is
fenced. Then the coordinator has seen all earlier epochs, and no replica serves a request of an
older version on a changed range.
"""

from typing import Final

from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.operations import NoopRequest
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


def noop_request(context: Context, command: NoopRequest) -> Decision:
    return (new_request(context, RequestKind.NOOP_REQUEST),)


def missing(image: Image, request: Request) -> MissingCondition | None:
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
