"""Handlers of the page's reads: states at any epoch, maps, rows, history and the balancer."""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.console.caches import SharedQueries
from stele.console.history import HistoryPage, HistoryQueries
from stele.console.maps import map_of, packed_map
from stele.console.mirror import Mirror, refused
from stele.console.node_stats import NodeStats
from stele.console.schema_view import schema_shown
from stele.console.throughput import Throughput
from stele.console.upstream import AwayError, Upstream
from stele.console.views import overview, range_summary, request_summaries, rows_of_node
from stele.domain.image import Image
from stele.domain.ring.placement import EMPTY_RING, Placement
from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancePlan,
    LoadHistory,
    SizesAnswer,
    TabletWhy,
)
from stele.runtime.http import ErrorCode, HttpError
from stele.runtime.http_encoding import GZIP_LEVEL, JSON, respond, takes_gzip
from stele.words.decisions import Wanted

MOST_COMPUTED: Final = 8
"""Number of computed answers kept. A map of a million tablets has 12 MB."""
MOST_EPOCHS: Final = 500
SEARCHED: Final = (
    *("actor", "command", "request", "facts", "about", "text", "refused"),
    *("since_ms", "until_ms", "before", "limit"),
)
BALANCER: Final[dict[str, tuple[str, type]]] = {
    "/api/balance": ("/v1/balance", BalanceAnswer),
    "/api/balance/plan": ("/v1/balance/plan", BalancePlan),
    "/api/balance/history": ("/v1/balance/history", LoadHistory),
    "/api/balance/why": ("/v1/balance/why", TabletWhy),
    "/api/balance/sizes": ("/v1/balance/sizes", SizesAnswer),
}
"""By path of the console: the path at the tablet-balancer and the type of its answer."""
BALANCER_S: Final = 1.0
"""Time for which an answer of the balancer is shared by all pages."""
_JSON: Final = msgspec.json.Encoder(enc_hook=str)

Handler = Callable[[Request], Awaitable[Response]]


class Reads:
    """Handlers of the page's reads. Each names a service that is away instead of failing."""

    def __init__(
        self,
        mirror: Mirror,
        upstream: Upstream,
        throughput: Throughput,
        about: dict[str, object],
    ) -> None:
        self._mirror = mirror
        self._upstream = upstream
        self._history = HistoryQueries(upstream, mirror)
        self._throughput = throughput
        self._about = about
        self._computed_answers = SharedQueries(MOST_COMPUTED)
        self._turn = asyncio.Lock()
        self._shared = SharedQueries()
        self._node_stats = NodeStats(upstream)

    def routes(self) -> list[Route]:
        found: dict[str, Handler] = {
            "/api/about": self.about,
            "/api/overview": self.overview,
            "/api/throughput": self.throughput,
            "/api/schema": self.schema,
            "/api/schema/diff": self.schema_diff,
            "/api/map": self.map,
            "/api/row": self.row,
            "/api/range": self.range,
            "/api/node": self.node,
            "/api/nodes": self.nodes,
            "/api/epochs": self.epochs,
            "/api/epochs/{epoch}": self.epoch,
            "/api/search": self.search,
            "/api/timeline": self.timeline,
            "/api/moment": self.moment,
            "/api/diff": self.diff,
            "/api/request": self.request,
            "/api/decisions": self.decisions,
            **{path: self._of_balancer(*theirs) for path, theirs in BALANCER.items()},
        }
        return [Route(path, named(handler), methods=["GET"]) for path, handler in found.items()]

    async def about(self, request: Request) -> Response:
        """Return the facts about this console, with the caller's name if callers have tokens."""
        caller = getattr(request.state, "caller", None)
        return await self._json(request, {**self._about, "caller": caller.name if caller else ""})

    async def overview(self, request: Request) -> Response:
        image = await self._image(request)
        dropped = await self._history.dropped_names(image)
        key = ("overview", image.state_id, *dropped.items())
        return await self._computed(request, key, lambda: _JSON.encode(overview(image, dropped)))

    async def throughput(self, request: Request) -> Response:
        """Return the samples of the past half hour, the oldest first."""
        return await self._json(request, {"samples": [*self._throughput.samples]})

    async def schema(self, request: Request) -> Response:
        image = await self._image(request)
        key = ("schema", image.state_id)
        return await self._computed(request, key, lambda: _JSON.encode(schema_shown(image)))

    async def map(self, request: Request) -> Response:
        image, name = await self._image(request), request.query_params.get("placement", "")
        placement, before, against = _placement(image, name), None, b""
        if "against" in request.query_params:
            other = await self._mirror.at(number(request, "against", 0))
            before, against = map_of(other, name) or EMPTY_RING, other.state_id
        return await self._computed(
            request,
            ("map", name, image.state_id, against),
            lambda: packed_map(name, image.epoch, placement, before),
            "application/octet-stream",
        )

    async def row(self, request: Request) -> Response:
        image, name = await self._image(request), request.query_params.get("placement", "")
        found = range_summary(image, name, number(request, "place", 0))
        if found is None:
            raise _nothing("row", name, image)
        return await self._json(request, found)

    async def range(self, request: Request) -> Response:
        """Return earlier replicas of a range, back from ``before`` or from the shown epoch."""
        image, name = await self._image(request), request.query_params.get("placement", "")
        found = range_summary(image, name, number(request, "place", 0))
        if found is None:
            raise _nothing("row", name, image)
        before = number(request, "before", 0) or image.epoch + 1
        start, end = int(found.start), int(found.end)
        return await self._json(request, await self._history.of_range(name, start, end, before))

    async def node(self, request: Request) -> Response:
        image, node_id = await self._image(request), request.query_params.get("node", "")
        known = image.membership.nodes.get(node_id)
        if known is None:
            raise _nothing("node", node_id, image)
        rows = await asyncio.to_thread(rows_of_node, image, node_id)
        history, away = await self._searched({"about": node_id, "limit": 30})
        answer = {
            "epoch": image.epoch,
            "node": known,
            "maps": rows,
            "history": history,
            "away": away,
        }
        return await self._json(request, answer)

    async def nodes(self, request: Request) -> Response:
        """Return what nodes report of themselves: of all now, or of ``node`` over time."""
        image, node_id = self._mirror.newest(), request.query_params.get("node", "")
        return await self._json(request, await self._node_stats.answer(image, node_id))

    async def timeline(self, request: Request) -> Response:
        limit = min(MOST_EPOCHS, max(1, number(request, "limit", 300)))
        found = await self._history.timeline(number(request, "before", 0), limit)
        return await self._json(request, found)

    async def epochs(self, request: Request) -> Response:
        limit = min(MOST_EPOCHS, max(1, number(request, "limit", 100)))
        found = await self._history.page(number(request, "before", 0), limit)
        return await self._json(request, found)

    async def epoch(self, request: Request) -> Response:
        epoch = whole_number("epoch", request.path_params["epoch"])
        return await self._json(request, await self._history.whole(epoch))

    async def search(self, request: Request) -> Response:
        asked = {
            name: request.query_params[name] for name in SEARCHED if name in request.query_params
        }
        return await self._json(request, await self._history.search(dict(asked)))

    async def moment(self, request: Request) -> Response:
        found = await self._history.at_moment(number(request, "at_ms", 0))
        return await self._json(request, {"epoch": found})

    async def diff(self, request: Request) -> Response:
        return await self._json(request, await self._history.diff(*self._epochs_of(request)))

    async def schema_diff(self, request: Request) -> Response:
        found = await self._history.schema_diff(*self._epochs_of(request))
        return await self._json(request, found)

    def _epochs_of(self, request: Request) -> tuple[int, int]:
        """Return the epochs ``from`` and ``to``; without ``to`` the newest one."""
        newest = self._mirror.image.epoch
        return number(request, "from", 0), number(request, "to", newest)

    async def request(self, request: Request) -> Response:
        image, request_id = await self._image(request), request.query_params.get("id", "")
        if not request_id:
            raise _nothing("request", request_id, image)
        known = image.request(request_id)
        dropped = await self._history.dropped_names(image)
        summary = next(
            (r for r in request_summaries(image, dropped) if r.request_id == request_id), None
        )
        epochs, away = await self._searched({"request": request_id, "limit": 100})
        if known is None and not epochs.epochs:
            if away:
                raise HttpError(503, "away", away, hint="The page goes on when it is back.")
            raise _nothing("request", request_id, image)
        answer = {
            "epoch": image.epoch,
            "request": known,
            "shown": summary,
            "epochs": epochs,
            "away": away,
        }
        return await self._json(request, answer)

    async def decisions(self, request: Request) -> Response:
        asked = request.query_params
        tablet = number(request, "tablet", 0) if "tablet" in asked else None
        wanted = Wanted(asked.get("by", ""), asked.get("table", ""), tablet)
        limit = min(MOST_EPOCHS, max(1, number(request, "limit", 50)))
        before = number(request, "before", 0)
        return await self._json(request, await self._history.decisions(wanted, limit, before))

    def _of_balancer(self, path: str, kind: type) -> Handler:
        async def balancer(request: Request) -> Response:
            params = dict(request.query_params)

            async def ask() -> bytes:
                answer = await self._upstream.ask("tablet-balancer", path, params)
                if not answer.ok:
                    raise refused(answer)
                try:
                    msgspec.json.decode(answer.body, type=kind)
                except msgspec.DecodeError as error:
                    text = "What the tablet-balancer answers cannot be understood."
                    hint = "See whether its address is right, and its release."
                    raise HttpError(502, "not_understood", text, hint=hint) from error
                return answer.body

            turn = int(time.monotonic() / BALANCER_S)
            key = (turn, path, *sorted(params.items()))
            return await respond(request, await self._shared.get(key, ask))

        return balancer

    async def _searched(self, asked: dict[str, object]) -> tuple[HistoryPage, str]:
        """Search the history. Return the page, or an empty one and the service that is away.

        The rest of an answer does not wait for the history.
        """
        try:
            return await self._history.search(asked), ""
        except AwayError as error:
            return HistoryPage(self._mirror.image.epoch, ()), f"{error}."

    async def _image(self, request: Request) -> Image:
        """Return the image at ``epoch``, or the newest. Raises HttpError, AwayError."""
        newest = self._mirror.newest().epoch
        asked = number(request, "epoch", 0) or newest
        if asked > newest:
            text = f"Epoch {asked} is not there yet; the newest is {newest}."
            raise HttpError(404, "epoch_not_found", text, hint="Wait, or ask for an earlier one.")
        return await self._mirror.at(asked)

    async def _computed(
        self,
        request: Request,
        key: tuple[Hashable, ...],
        make: Callable[[], bytes],
        kind: str = JSON,
    ) -> Response:
        """Return a large answer, which is made and compressed once for all pages."""
        packs = takes_gzip(request)

        def made() -> bytes:
            return gzip.compress(make(), GZIP_LEVEL) if packs else make()

        async def made_in_turn() -> bytes:
            async with self._turn:  # one at a time, since each takes a processor and much memory
                return await asyncio.to_thread(made)

        body = await self._computed_answers.get((packs, *key), made_in_turn)
        headers = {"vary": "accept-encoding", "cache-control": "no-store"}
        if packs:
            headers["content-encoding"] = "gzip"
        return Response(body, media_type=kind, headers=headers)

    async def _json(self, request: Request, answer: object) -> Response:
        return await respond(request, _JSON.encode(answer))


def named(handler: Handler) -> Handler:
    """Wrap a handler: AwayError becomes a 503 answer that names the service."""

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except AwayError as error:
            hint = "The page goes on when it is back. `stele stack status` shows the processes."
            details = {"service": error.service}
            raise HttpError(503, "away", f"{error}.", hint=hint, details=details) from error

    answered.__name__ = getattr(handler, "__name__", "answered")
    return answered


def number(request: Request, name: str, default: int) -> int:
    """Return a query parameter as a whole number of at most 18 digits. Raises HttpError."""
    text = request.query_params.get(name, "")
    return whole_number(name, text) if text else default


def whole_number(name: str, text: str) -> int:
    """Parse a whole number of 1 to 18 digits. Raises HttpError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        hint = f"Send {name}= followed by digits."
        message = f"{name} '{text[:40]}' is no whole number."
        raise HttpError(400, ErrorCode.INVALID_REQUEST, message, hint=hint)
    return int(text)


def _placement(image: Image, name: str) -> Placement:
    found = map_of(image, name)
    if found is None:
        raise _nothing("map", name, image)
    return found


def _nothing(what: str, name: str, image: Image) -> HttpError:
    text = f"There is no {what} '{name[:80]}' at epoch {image.epoch}."
    details: dict[str, Any] = {"epoch": image.epoch}
    return HttpError(404, f"unknown_{what}", text, hint="Take another epoch.", details=details)
