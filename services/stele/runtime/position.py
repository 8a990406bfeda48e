"""``GET /v1/position``: the position of a process in the log, the same route in every service.

Two processes at the same epoch must show the same hash. A difference is a bug (docs/design.md, I1).
"""

import asyncio
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.image import Image
from stele.domain.snapshot import state_hash
from stele.runtime.answers.common import Position
from stele.runtime.http import JsonResponse


class HasImage(Protocol):
    """An owner of an image, such as a LogFollower or a Fold."""

    @property
    def image(self) -> Image: ...


def position_route(name: str, instance: str, follower: HasImage) -> Route:
    """Return the route of service ``name``. The hash is computed once per state, on request."""
    hashed: dict[bytes, str] = {}

    async def position(_: Request) -> Response:
        image = follower.image
        if image.state_id not in hashed:
            found = await asyncio.to_thread(state_hash, image)
            hashed.clear()
            hashed[image.state_id] = found
        else:
            found = hashed[image.state_id]
        return JsonResponse(
            Position(
                service=name,
                instance=instance,
                epoch=image.epoch,
                state_id=image.state_id.hex(),
                log_id=image.log_id.hex(),
                hash=found,
            )
        )

    return Route("/v1/position", position, methods=["GET"])
