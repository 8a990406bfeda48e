"""``python -m stele.tablet_balancer``: configured by STELE_* environment variables."""

import asyncio

from stele.runtime.announce import announced
from stele.runtime.follow import following, run_beside
from stele.runtime.http import build_app, serve
from stele.runtime.position import position_route
from stele.runtime.service import Stop, run_service
from stele.runtime.start import started
from stele.tablet_balancer.balancing import balancing
from stele.tablet_balancer.http import routes
from stele.tablet_balancer.settings import BalancerSettings

NAME = "tablet-balancer"


async def main(stop: Stop) -> None:
    settings = started(NAME, BalancerSettings)
    async with following(settings) as followed, balancing(settings, followed) as balancer:
        follower = followed.follower
        position = position_route(NAME, settings.instance_id, follower)
        app = build_app(NAME, [position, *routes(balancer)], followed.health)
        async with (
            announced(NAME, settings, lambda: follower.image, followed.caught_up.is_set),
            run_beside(asyncio.ensure_future(balancer.run()), stop),
        ):
            await serve(app, settings, NAME, stop)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
