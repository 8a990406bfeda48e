"""``python -m stele.coordinator``: configured by STELE_* environment variables."""

import asyncio

from stele.coordinator.driver import driving
from stele.coordinator.http import health, routes
from stele.coordinator.settings import CoordinatorSettings
from stele.runtime.announce import announced
from stele.runtime.follow import following, run_beside
from stele.runtime.http import build_app, listening
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, run_service, started

NAME = "coordinator"
MAX_BODY_BYTES = 64 * 1024
"""Largest request body: the command of an operation, for a node that chooses a thousand tokens."""


async def main(stop: Stop) -> None:
    settings = started(NAME, CoordinatorSettings)
    async with (
        listening(settings, NAME) as listener,
        following(settings) as followed,
        driving(settings, followed) as driver,
    ):
        follower = followed.follower
        position = position_route(NAME, settings.instance_id, follower)
        app = build_app(
            NAME,
            [position, recent_route(followed.recent.records), *routes(driver)],
            lambda: health(driver, followed),
            max_body_bytes=MAX_BODY_BYTES,
        )
        async with (
            announced(NAME, settings, lambda: follower.image, followed.caught_up.is_set),
            run_beside(asyncio.ensure_future(driver.run()), stop),
        ):
            await listener.serve(app, stop)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
