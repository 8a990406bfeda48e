"""``python -m stele.tablet_balancer``: configured by STELE_* environment variables."""

import asyncio

import msgspec

from stele.runtime.announce import announced
from stele.runtime.follow import Followed, following, run_beside
from stele.runtime.http import Health, build_app, listening
from stele.runtime.live_flow import LiveReader, reading_live
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, run_service, started
from stele.tablet_balancer.balancer import balancing
from stele.tablet_balancer.http import routes
from stele.tablet_balancer.loads import LOADS, Loads
from stele.tablet_balancer.settings import BalancerSettings

NAME = "tablet-balancer"


async def main(stop: Stop) -> None:
    settings = started(NAME, BalancerSettings)
    loads = Loads()
    async with (
        listening(settings, NAME) as listener,
        following(settings) as followed,
        reading_live(settings, LOADS, loads.on_record, loads.on_read_until) as reader,
        balancing(settings, followed, loads) as balancer,
    ):
        follower = followed.follower
        position = position_route(NAME, settings.instance_id, follower)
        app = build_app(
            NAME,
            [position, recent_route(followed.recent.records), *routes(balancer)],
            lambda: _health(followed, reader),
        )
        async with (
            announced(NAME, settings, lambda: follower.image, followed.caught_up.is_set),
            run_beside(asyncio.ensure_future(reader.watch()), stop),
            run_beside(asyncio.ensure_future(balancer.run()), stop),
        ):
            await listener.serve(app, stop)


def _health(followed: Followed, reader: LiveReader) -> Health:
    """Return the health. Without new loads the service is degraded.

    It then balances by the loads that it has, or by count.
    """
    state, degraded = followed.health(), reader.trouble or reader.restless
    if not state.ok or not degraded:
        return state
    return msgspec.structs.replace(state, reason=f"degraded: {degraded}")


if __name__ == "__main__":
    raise SystemExit(run_service(main))
