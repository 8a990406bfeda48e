"""The domain of topology requests, entered in the registry."""

from collections.abc import Iterable

from immutables import Map

from stele.domain.names import UNFINISHED, RequestStatus
from stele.domain.registry_entry import Domain, Filter
from stele.domain.requests.commands import Cancel, RejectRequest
from stele.domain.requests.decide import cancel, reject_request
from stele.domain.requests.facts import Request, RequestChanged, RequestForgotten, RequestsFact
from stele.domain.requests.image import RequestsImage
from stele.domain.tables import Json, changed_rows, sorted_values


def request_changed(image: RequestsImage, fact: RequestChanged) -> RequestsImage:
    request, open_ = fact.request, image.open
    if request.status in UNFINISHED:
        open_ = open_.set(request.request_id, request)
    elif request.request_id in open_:
        open_ = open_.delete(request.request_id)
    return RequestsImage(
        image.requests.set(request.request_id, request),
        open_,
        image.forgotten,
        _changes(image.changes, request),
    )


def _changes(known: Map[str, str], request: Request) -> Map[str, str]:
    of = request.keyspace_id
    if request.replication and request.status in UNFINISHED:
        return known.set(of, request.request_id)
    return known.delete(of) if known.get(of) == request.request_id else known


def request_forgotten(image: RequestsImage, fact: RequestForgotten) -> RequestsImage:
    """In a snapshot the request itself is gone already: the fact says since when there are all."""
    requests, newest = image.requests, image.forgotten
    if fact.request_id in requests:
        requests = requests.delete(fact.request_id)
    if newest is None or fact.finished_epoch >= newest.finished_epoch:
        newest = fact
    return RequestsImage(requests, image.open, newest, image.changes)


def to_facts(image: RequestsImage) -> Iterable[RequestsFact]:
    if image.forgotten is not None:
        yield image.forgotten
    for request in sorted_values(image.requests):
        yield RequestChanged(request)


def view(image: RequestsImage) -> Json:
    return {"requests": tuple(sorted_values(image.requests))}


def diff(before: RequestsImage, after: RequestsImage) -> Json:
    return {"requests": changed_rows("request_id", before.requests, after.requests)}


FILTERS = {
    "status": Filter(
        "Only those that are so",
        lambda request, value: request.status == value,
        tuple(RequestStatus),
    ),
    "unfinished": Filter(
        "true: only those that are pending or running; false: only the others",
        lambda request, value: (request.status in UNFINISHED) == (value == "true"),
        ("true", "false"),
    ),
    "node": Filter(
        "Only those about this node, by its id", lambda request, value: value in request.nodes()
    ),
    "kind": Filter("Only those of this kind, such as join", lambda r, value: r.kind == value),
    "prefix": Filter(
        "Only those whose id begins so", lambda r, value: r.request_id.startswith(value)
    ),
}
"""By what requests can be asked for."""

DOMAIN = Domain(
    name="requests",
    empty=RequestsImage(),
    decide={Cancel: cancel, RejectRequest: reject_request},
    apply={RequestChanged: request_changed, RequestForgotten: request_forgotten},
    to_facts=to_facts,
    view=view,
    diff=diff,
    filters={"requests": FILTERS},
)
