"""The coordinator's routes: progress, plans, the OpenAPI document, and its health."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.coordinator.driver import Driver
from stele.coordinator.openapi import openapi
from stele.coordinator.plans import Plans
from stele.runtime.follow import Followed
from stele.runtime.http import Health, JsonResponse


def routes(driver: Driver) -> list[Route]:
    async def progress(_: Request) -> Response:
        return JsonResponse(driver.progress())

    async def document(_: Request) -> Response:
        return JsonResponse(openapi())

    return [
        Route("/v1/progress", progress, methods=["GET"]),
        Route("/v1/plan", Plans(driver).plan, methods=["POST"]),
        Route("/openapi.json", document, methods=["GET"]),
    ]


def health(driver: Driver, followed: Followed) -> Health:
    """Return the health: a standby is as healthy as the active instance.

    An instance that cannot take part in the election is not healthy.
    """
    found = followed.health()
    if found.ok and driver.election.failure:
        return Health(
            ok=False, epoch=found.epoch, state_id=found.state_id, reason=driver.election.failure
        )
    return found
