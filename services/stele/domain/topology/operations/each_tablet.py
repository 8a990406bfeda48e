"""Commands about several tablets: each tablet gets a separate request, and possible ones are
queued.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.requests.model import Request, RequestChanged
from stele.domain.tablets.maps import names_tablet

T = TypeVar("T")
Tablet = tuple[str, int]
"""The table's id, and the tablet's number."""

MAX_WHY_CHARS: Final = 1024


def open_tablets(image: Image, which: Callable[[Request], bool]) -> set[Tablet]:
    """Return the tablets of matching requests that are open or pending."""
    return {
        (request.table_id, request.tablet)
        for request in image.requests.open.values()
        if which(request) and names_tablet(image, request)
    }


def each_once(
    asked: Iterable[T],
    request_for: Callable[[T], RequestChanged | Rejection],
    taken: set[Tablet],
    nothing: Rejection,
) -> Decision:
    """Return the possible requests; each adds its tablet to ``taken``.

    If none is possible, return the first refusal, or ``nothing``.
    """
    found, refusals = list[RequestChanged](), list[Rejection]()
    for each in asked:
        made = request_for(each)
        if isinstance(made, Rejection):
            refusals.append(made)
            continue
        # A second entry for this tablet in the same command is refused.
        taken.add((made.request.table_id, made.request.tablet))
        found.append(made)
    return tuple(found) or (refusals[0] if refusals else nothing)


def of_tablet(
    context: Context, asked: Request, tablet: int, why: str, *, alone: bool
) -> RequestChanged:
    """Return the request for one tablet.

    It has the command's id if it is ``alone``, and ``why`` as its reason unless that is empty.
    """
    id_ = asked.request_id if alone else context.unique(f"{asked.table_id}/{tablet}")
    reason = why[:MAX_WHY_CHARS] or asked.reason
    return RequestChanged(
        msgspec.structs.replace(asked, request_id=id_, tablet=tablet, reason=reason)
    )
