"""The coordinator's routes: GET /v1/progress, POST /v1/plan, and its health."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.coordinator.driver import Driver
from stele.coordinator.plans import Plans
from stele.runtime.follow import Followed
from stele.runtime.http import Health, JsonResponse


def routes(driver: Driver) -> list[Route]:
    async def progress(_: Request) -> Response:
        return JsonResponse(driver.progress())

    return [
        Route("/v1/progress", progress, methods=["GET"]),
        Route("/v1/plan", Plans(driver).plan, methods=["POST"]),
    ]


def health(driver: Driver, followed: Followed) -> Health:
    """A standby is as well as the active one; out of the election for good is not."""
    found = followed.health()
    if found.ok and driver.election.failure:
        return Health(
            ok=False, epoch=found.epoch, state_id=found.state_id, reason=driver.election.failure
        )
    return found
