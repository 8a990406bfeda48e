"""``python -m stele.session_guard``: configured by STELE_* environment variables."""

import asyncio
from contextlib import AsyncExitStack

from stele.runtime.announce import announced
from stele.runtime.follow import following, run_beside
from stele.runtime.http import build_app, listening
from stele.runtime.live_flow import LiveFlow, reading_live
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, run_service, started
from stele.session_guard.guard import Guard
from stele.session_guard.http import health, routes
from stele.session_guard.proof import Proofs
from stele.session_guard.redis_writer import RedisWriter
from stele.session_guard.settings import SessionGuardSettings

NAME = "session-guard"
LOOK_BACK = 1_000
"""Acks read from each partition at the start: several times the number of nodes, and read in a
second.
"""
ACKS = LiveFlow(NAME, "acks", LOOK_BACK)


async def main(stop: Stop) -> None:
    settings = started(NAME, SessionGuardSettings)
    async with (
        listening(settings, NAME) as listener,
        following(settings) as followed,
        AsyncExitStack() as stack,
    ):
        follower = followed.follower
        guard = Guard(follower, settings.heartbeat_timeout_s)
        proofs = Proofs(follower, settings.guard_ttl_s)
        stack.push_async_callback(proofs.close)
        writer = RedisWriter(settings, follower, guard, proofs)
        stack.push_async_callback(writer.close)
        acks = await stack.enter_async_context(
            reading_live(settings, ACKS, guard.on_ack, guard.on_read_until)
        )
        app = build_app(
            NAME,
            [
                position_route(NAME, settings.instance_id, follower),
                recent_route(followed.recent.records),
                *routes(guard, proofs, settings.proof_max_age_s),
            ],
            lambda: health(guard, followed, proofs, acks, writer),
        )
        async with (
            announced(NAME, settings, lambda: follower.image, followed.caught_up.is_set),
            run_beside(asyncio.ensure_future(acks.watch()), stop),
            run_beside(asyncio.ensure_future(writer.run()), stop),
        ):
            await listener.serve(app, stop)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
