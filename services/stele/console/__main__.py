"""``python -m stele.console``: configured by STELE_* environment variables."""

import asyncio
from importlib.metadata import version

import aiohttp
from starlette.middleware import Middleware

from stele.console.gate import Gate
from stele.console.http import command_routes, page_routes, stream_route
from stele.console.hub import Hub
from stele.console.mirror import LINE_BYTES, Mirror
from stele.console.operations import shown
from stele.console.reads import Reads
from stele.console.settings import ConsoleSettings
from stele.console.stream import Pages, told_event
from stele.console.told import told_live
from stele.console.upstream import Upstream
from stele.console.watch import Watch
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.runtime.callers import Callers, callers_of
from stele.runtime.follow import run_beside
from stele.runtime.http import Health, build_app, serve
from stele.runtime.http_client import connector
from stele.runtime.http_server import bind, url_of
from stele.runtime.logs import get_logger
from stele.runtime.position import position_route
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import ConfigurationError
from stele.runtime.start import started

NAME = "console"

log = get_logger(__name__)


async def main(stop: Stop) -> None:
    settings = started(NAME, ConsoleSettings)
    if not settings.metadata_log_urls:
        raise ConfigurationError(
            "STELE_METADATA_LOG_URLS is not set: the console shows what a metadata-log answers."
        )
    token, callers, hub = settings.token(), callers_of(settings), Hub()
    async with aiohttp.ClientSession(connector=connector(), read_bufsize=LINE_BYTES) as http:
        upstream = Upstream(http, settings.services())

        def taken(before: Image, epoch: Epoch, after: Image) -> None:
            hub.add(epoch.epoch, told_event(told_live(before, epoch, after)))

        mirror = Mirror(upstream, taken, hub.begin_anew)
        watch = Watch(upstream, mirror, hub, settings.console_poll_s)
        about = {
            "cluster": settings.cluster,
            "release": version("stele"),
            "commands": settings.console_commands,
            "operations": shown(),
        }
        app = build_app(
            NAME,
            [
                position_route(NAME, settings.instance_id, mirror),
                *page_routes(),
                *Reads(mirror, upstream, about).routes(),
                stream_route(Pages(mirror, hub, watch)),
                *command_routes(mirror, upstream, may_command=settings.console_commands),
            ],
            lambda: _health(mirror, callers),
        )
        app.user_middleware.insert(0, Middleware(Gate, token=token, callers=callers))
        sock = bind(settings.http_host, settings.http_port)
        url = url_of(sock, settings.http_tls)
        where = f"{url}/#token={token}" if token else url
        log.info("open the page", at=where)
        async with (
            run_beside(asyncio.ensure_future(mirror.run()), stop),
            run_beside(asyncio.ensure_future(watch.run()), stop),
        ):
            await serve(app, settings, NAME, stop, sock=sock)


def _health(mirror: Mirror, callers: Callers | None) -> Health:
    """It is up without a metadata-log too: it says who is away."""
    image, trouble = mirror.image, mirror.trouble or (callers.trouble() if callers else "")
    reason = f"degraded: {trouble}" if trouble else ""
    return Health(ok=True, epoch=image.epoch, state_id=image.state_id.hex(), reason=reason)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
