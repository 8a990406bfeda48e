"""``python -m stele.cdc_connector``: configured by STELE_* environment variables."""

import asyncio

from stele.cdc_connector.publishing import Publisher
from stele.cdc_connector.settings import CdcConnectorSettings
from stele.runtime.announce import announced
from stele.runtime.follow import Followed, following, run_beside
from stele.runtime.http import Health, build_app, listening
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, run_service, started
from stele.runtime.transport import HttpTransport

NAME = "cdc-connector"


async def main(stop: Stop) -> None:
    settings = started(NAME, CdcConnectorSettings)
    async with listening(settings, NAME) as listener, following(settings) as followed:
        transport = HttpTransport()
        follower = followed.follower
        publisher = Publisher(settings, follower, transport)
        app = build_app(
            NAME,
            [
                position_route(NAME, settings.instance_id, follower),
                recent_route(followed.recent.records),
            ],
            lambda: _health(followed, publisher),
        )
        try:
            async with (
                announced(NAME, settings, lambda: follower.image, followed.caught_up.is_set),
                run_beside(asyncio.ensure_future(publisher.run()), stop),
            ):
                await listener.serve(app, stop)
        finally:
            await transport.close()


def _health(followed: Followed, publisher: Publisher) -> Health:
    """Return the health. A table that cannot be published makes it degraded."""
    health = followed.health()
    troubles = "; ".join(f"{table}: {why}" for table, why in sorted(publisher.troubles.items()))
    if health.reason or not troubles:
        return health
    return Health(
        ok=True, epoch=health.epoch, state_id=health.state_id, reason=f"degraded: {troubles}"
    )


if __name__ == "__main__":
    raise SystemExit(run_service(main))
