"""The balancer's routes: the state of balance, the plan, and the reasons for a tablet's place."""

from enum import StrEnum
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.base import Rejection
from stele.runtime.http import HttpError, JsonResponse
from stele.tablet_balancer.balancer import Balancer
from stele.tablet_balancer.loads import HistorySpan

T = TypeVar("T", bound=StrEnum)

LARGEST: Final = 16
"""Number of tablets in an answer without an explicit limit."""
MOST_DIGITS: Final = 10


class TabletOrder(StrEnum):
    """The order of tablets in an answer."""

    SIZE = "size"
    RATE = "rate"


def routes(balancer: Balancer) -> list[Route]:
    async def balance(_: Request) -> Response:
        return JsonResponse(await balancer.answer())

    async def plan(_: Request) -> Response:
        return JsonResponse(await balancer.plan())

    async def history(request: Request) -> Response:
        return JsonResponse(
            await balancer.history(_one_of(HistorySpan, request, "span", HistorySpan.HOUR))
        )

    async def why(request: Request) -> Response:
        return _answered(await balancer.why(_table(request), _number(request, "tablet", "0")))

    async def sizes(request: Request) -> Response:
        limit, order = (
            _number(request, "limit", str(LARGEST)),
            _one_of(TabletOrder, request, "order", TabletOrder.SIZE),
        )
        return _answered(
            await balancer.sizes(_table(request), limit, hottest=order is TabletOrder.RATE)
        )

    return [
        Route("/v1/balance", balance, methods=["GET"]),
        Route("/v1/balance/plan", plan, methods=["GET"]),
        Route("/v1/balance/history", history, methods=["GET"]),
        Route("/v1/balance/why", why, methods=["GET"]),
        Route("/v1/balance/sizes", sizes, methods=["GET"]),
    ]


def _answered(found: object) -> Response:
    if isinstance(found, Rejection):
        raise HttpError.refused(404, found)
    return JsonResponse(found)


def _table(request: Request) -> str:
    return request.query_params.get("table", "")


def _one_of(kind: type[T], request: Request, name: str, default: T) -> T:
    text = request.query_params.get(name, default)
    try:
        return kind(text)
    except ValueError:
        raise HttpError(
            400,
            f"bad_{name}",
            f"{name} '{text[:40]}' is not known.",
            hint=f"Ask for {' or '.join(f'?{name}={each}' for each in kind)}.",
        ) from None


def _number(request: Request, name: str, default: str) -> int:
    text = request.query_params.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < MOST_DIGITS):
        raise HttpError(
            400,
            "bad_number",
            f"{name} '{text[:40]}' is not a number.",
            hint="Ask for ?table=KEYSPACE.TABLE and numbers from 0 on.",
        )
    return int(text)
