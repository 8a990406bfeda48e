"""Entry point of the console: ``python -m stele.console``, set up by STELE_* variables."""

import asyncio
from contextlib import AsyncExitStack
from importlib.metadata import version

from starlette.middleware import Middleware

from stele.console.access import AccessControl
from stele.console.epoch_text import live_epoch_text
from stele.console.http import command_routes, page_routes, stream_route
from stele.console.mirror import Mirror
from stele.console.operations import operation_forms
from stele.console.reads import Reads
from stele.console.settings import ConsoleSettings
from stele.console.stream import Pages, epoch_event
from stele.console.upstream import DUMP_S, Upstream
from stele.console.watch import Hub, Watch
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.runtime.callers import Callers, callers_of
from stele.runtime.follow import run_beside
from stele.runtime.http import Health, bind, build_app, serve, url_of
from stele.runtime.logs import get_logger
from stele.runtime.position import position_route
from stele.runtime.service import Stop, run_service, started
from stele.runtime.settings import ConfigurationError
from stele.runtime.transport import HttpTransport

NAME = "console"

log = get_logger(__name__)


async def main(stop: Stop) -> None:
    settings = started(NAME, ConsoleSettings)
    if not settings.metadata_log_urls:
        raise ConfigurationError(
            "STELE_METADATA_LOG_URLS is not set: the console shows what a metadata-log answers."
        )
    token, callers, hub = settings.token(), callers_of(settings), Hub()
    async with AsyncExitStack() as closing:
        http = HttpTransport(DUMP_S, redirects=False)
        closing.push_async_callback(http.close)
        upstream = Upstream(http, settings.services())

        def taken(before: Image, epoch: Epoch, after: Image) -> None:
            hub.add(epoch.epoch, epoch_event(live_epoch_text(before, epoch, after)))

        mirror = Mirror(upstream, taken, hub.restart)
        watch = Watch(upstream, mirror, hub, settings.console_poll_s)
        about = {
            "cluster": settings.cluster,
            "release": version("stele"),
            "commands": settings.console_commands,
            "operations": operation_forms(),
        }
        app = build_app(
            NAME,
            [
                position_route(NAME, settings.instance_id, mirror),
                *page_routes(),
                *Reads(mirror, upstream, watch.throughput, about).routes(),
                stream_route(Pages(mirror, hub, watch)),
                *command_routes(mirror, upstream, may_command=settings.console_commands),
            ],
            lambda: _health(mirror, callers),
        )
        app.user_middleware.insert(0, Middleware(AccessControl, token=token, callers=callers))
        sock = bind(settings.http_host, settings.http_port)
        url = url_of(sock, settings.http_tls)
        where = f"{url}/#token={token}" if token else url
        log.info("open the page", at=where)
        async with (
            run_beside(asyncio.ensure_future(mirror.run()), stop),
            run_beside(asyncio.ensure_future(watch.run()), stop),
            run_beside(asyncio.ensure_future(watch.sample()), stop),
        ):
            await serve(app, settings, NAME, stop, sock=sock)


def _health(mirror: Mirror, callers: Callers | None) -> Health:
    """Return the health. The console is up without a metadata-log too, and names what is away."""
    image, trouble = mirror.image, mirror.trouble or (callers.trouble() if callers else "")
    reason = f"degraded: {trouble}" if trouble else ""
    return Health(ok=True, epoch=image.epoch, state_id=image.state_id.hex(), reason=reason)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
