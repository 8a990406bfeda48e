"""The balancer's routes: how things stand, what would move, and why a tablet is where it is."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.base import Rejection
from stele.runtime.http import HttpError, JsonResponse
from stele.tablet_balancer.balancing import Balancer


def routes(balancer: Balancer) -> list[Route]:
    async def balance(_: Request) -> Response:
        return JsonResponse(balancer.answer())

    async def plan(_: Request) -> Response:
        return JsonResponse(await balancer.plan())

    async def why(request: Request) -> Response:
        found = balancer.why(request.query_params.get("table", ""), _tablet(request))
        if isinstance(found, Rejection):
            raise HttpError(404, found.code, found.message, hint=found.hint, details=found.details)
        return JsonResponse(found)

    return [
        Route("/v1/balance", balance, methods=["GET"]),
        Route("/v1/balance/plan", plan, methods=["GET"]),
        Route("/v1/balance/why", why, methods=["GET"]),
    ]


def _tablet(request: Request) -> int:
    text = request.query_params.get("tablet", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HttpError(
            400,
            "bad_tablet",
            f"'{text[:40]}' is no number of a tablet.",
            hint="Ask for ?table=KEYSPACE.TABLE&tablet=0.",
        )
    return int(text)
