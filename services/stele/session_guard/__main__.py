"""``python -m stele.session_guard``: configured by STELE_* environment variables."""

import asyncio
import uuid
from contextlib import AsyncExitStack

from stele.runtime.follow import following, run_beside
from stele.runtime.http import build_app, serve
from stele.runtime.logs import configure_logs
from stele.runtime.position import position_route
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import load_settings
from stele.session_guard.acks import reading_acks, watch
from stele.session_guard.guard import Guard
from stele.session_guard.http import health, routes
from stele.session_guard.redis_writer import RedisWriter
from stele.session_guard.settings import SessionGuardSettings

NAME = "session-guard"


async def main(stop: Stop) -> None:
    settings = load_settings(SessionGuardSettings)
    configure_logs(
        service=NAME,
        instance=settings.instance_id,
        level=settings.log_level,
        json=settings.log_json,
    )
    async with following(settings) as followed, AsyncExitStack() as stack:
        guard = Guard(followed.follower, settings.heartbeat_timeout_s)
        writer = RedisWriter(settings, followed, guard)
        stack.push_async_callback(writer.close)
        position = position_route(NAME, settings.instance_id, followed.follower)
        app = build_app(NAME, [position, *routes(guard)], lambda: health(guard, followed, writer))
        async with (
            reading_acks(settings, uuid.uuid4().hex[:8], guard.on_ack) as acks,
            run_beside(asyncio.ensure_future(watch(acks)), stop),
            run_beside(asyncio.ensure_future(writer.run()), stop),
        ):
            await serve(app, settings, NAME, stop)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
