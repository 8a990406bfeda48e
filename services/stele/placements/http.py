"""The HTTP API of placements: the progress, and the placements at any epoch, read from Delta."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.image import ZERO_STATE
from stele.domain.ring.ranges import RangeReplicas, placement_hash
from stele.placements.derived_tables import Reached
from stele.placements.runner import Phase, Runner
from stele.placements.settings import PlacementsSettings
from stele.placements.store import TableMissing, holds_epoch, placements_at
from stele.runtime.http import ErrorCode, Health, HttpError, JsonResponse

NAME: Final = "placements"
_MOST_DIGITS: Final = 19
"""Digits of the largest epoch."""
_NOTHING: Final = Reached(0, ZERO_STATE.hex())


class FleetHealth(Health, frozen=True):
    """``stopped`` names the clusters that do not continue, the reason, and what to do.

    ``summaries_stopped`` names those that continue except for their summaries, ``topics_stopped``
    except for their topic of placements or schema. A process for one cluster is then unhealthy. A process for
    a fleet is healthy while some clusters continue: a restart would delay these and help none.
    """

    stopped: dict[str, str] = msgspec.field(default_factory=dict)
    summaries_stopped: dict[str, str] = msgspec.field(default_factory=dict)
    topics_stopped: dict[str, str] = msgspec.field(default_factory=dict)


class ClusterPosition(msgspec.Struct, frozen=True):
    """Materialized state of a cluster; ``placements_hash`` is that of ``domain.ring.ranges.placement_hash``."""

    epoch: int
    state_id: str
    placements_hash: str


class PlacementsPosition(msgspec.Struct, frozen=True):
    """``hash`` is null: this service holds the placements of an image, not the image."""

    service: str
    instance: str
    epoch: int
    state_id: str
    placements_hash: str
    clusters: dict[str, ClusterPosition]
    stopped: dict[str, str]
    summaries_stopped: dict[str, str]
    topics_stopped: dict[str, str]
    hash: str | None = None


class Placements(msgspec.Struct, frozen=True):
    """The answer of GET /v1/placements."""

    cluster: str
    epoch: int
    placements_hash: str
    placements: dict[str, list[RangeReplicas]]


class Api:
    """The routes of one runner."""

    def __init__(self, runner: Runner, settings: PlacementsSettings) -> None:
        self._runner = runner
        self._instance = settings.instance_id
        self._cluster = settings.cluster
        self._fleet = bool(settings.clusters_pattern)
        self._delta_dir = str(settings.store())
        self._hashes: dict[str, tuple[Reached, str]] = {}

    def routes(self) -> list[Route]:
        return [
            Route("/v1/position", self.position, methods=["GET"]),
            Route("/v1/placements", self.placements, methods=["GET"]),
        ]

    def health(self) -> FleetHealth:
        job = self._runner.job
        if job is None:
            return FleetHealth(
                ok=False,
                epoch=_NOTHING.epoch,
                state_id=_NOTHING.state_id,
                reason=self._runner.reason,
            )
        reached, stopped, topics = job.reached, job.stopped, job.topics_stopped
        found = reached.get(self._cluster, _NOTHING)
        goes_on = self._fleet and set(reached) - set(stopped)
        held_up = {} if goes_on else stopped if self._fleet else topics | stopped
        return FleetHealth(
            ok=self._runner.phase is Phase.RUNNING and not held_up,
            epoch=found.epoch,
            state_id=found.state_id,
            reason=self._runner.reason or " ".join(held_up.values()),
            stopped=stopped,
            summaries_stopped=job.summaries_stopped,
            topics_stopped=topics,
        )

    async def position(self, _: Request) -> Response:
        """Return the position of each cluster, with the hash of its rows on disk."""
        job = self._runner.job
        reached = self._reached()
        clusters = {name: await self._position(name, reached[name]) for name in sorted(reached)}
        here = clusters.get(self._cluster) or ClusterPosition(
            0, ZERO_STATE.hex(), placement_hash({})
        )
        return JsonResponse(
            PlacementsPosition(
                service=NAME,
                instance=self._instance,
                epoch=here.epoch,
                state_id=here.state_id,
                placements_hash=here.placements_hash,
                clusters=clusters,
                stopped={} if job is None else job.stopped,
                summaries_stopped={} if job is None else job.summaries_stopped,
                topics_stopped={} if job is None else job.topics_stopped,
            )
        )

    async def placements(self, request: Request) -> Response:
        """``?cluster=&epoch=&placement=``: return the rows at an epoch, by default the newest."""
        cluster = request.query_params.get("cluster", self._cluster)
        found = self._reached().get(cluster)
        if found is None:
            raise HttpError(
                404,
                ErrorCode.NOT_FOUND,
                f"Nothing of cluster '{cluster}' is materialized yet.",
                hint="GET /v1/position shows the clusters; a new one takes a few seconds.",
            )
        epoch = _epoch(request, found.epoch)
        if epoch != found.epoch and not await asyncio.to_thread(
            holds_epoch, self._delta_dir, cluster, epoch
        ):
            raise HttpError(
                404,
                ErrorCode.NOT_FOUND,
                f"Epoch {epoch} of cluster '{cluster}' is not in the tables: a snapshot passed it over.",
                hint="The table events has the epochs that are there, and the rows 'snapshot'.",
            )
        rows = await asyncio.to_thread(placements_at, self._delta_dir, cluster, epoch)
        wanted = request.query_params.get("placement")
        if wanted is not None:
            rows = {name: rows[name] for name in rows if name == wanted}
        return JsonResponse(Placements(cluster, epoch, placement_hash(rows), rows))

    def _reached(self) -> dict[str, Reached]:
        job = self._runner.job
        return {} if job is None else job.reached

    async def _position(self, cluster: str, found: Reached) -> ClusterPosition:
        known = self._hashes.get(cluster)
        if known is None or known[0] != found:
            try:
                hashed = await asyncio.to_thread(self._hash, cluster, found)
            except (TableMissing, OSError) as error:
                raise HttpError(
                    503,
                    ErrorCode.UNAVAILABLE,
                    f"The tables cannot be read: {error}",
                    hint="Try again.",
                ) from error
            known = self._hashes[cluster] = (found, hashed)
        return ClusterPosition(found.epoch, found.state_id, known[1])

    def _hash(self, cluster: str, found: Reached) -> str:
        return placement_hash(placements_at(self._delta_dir, cluster, found.epoch))


def _epoch(request: Request, newest: int) -> int:
    text = request.query_params.get("epoch", str(newest))
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) <= newest:
        return int(text)
    raise HttpError(
        400,
        ErrorCode.INVALID_REQUEST,
        f"epoch={text} is not a number from 0 to {newest}, the newest that is materialized.",
        hint="Wait until GET /v1/position shows it, or ask for an older one.",
        details={"newest_epoch": newest},
    )
