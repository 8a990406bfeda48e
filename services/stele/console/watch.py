"""What the services say of themselves, looked at again and again while a page is open."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from stele.console.alerts import Alert, ProcessShown, alerts
from stele.console.doubt import doubt, newest_of
from stele.console.hub import Hub
from stele.console.mirror import Mirror
from stele.console.pipeline import ClusterShown, clusters_of
from stele.console.shown import WhyShown, why_shown
from stele.console.upstream import AwayError, Upstream
from stele.domain.names import NodeState
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.session_guard import NodeLiveness
from stele.runtime.http import Health

T = TypeVar("T")

_NO_ANSWERS: Final = (msgspec.DecodeError, RecursionError)
"""The second is of JSON that nests thousands deep."""
MOST_TEXT: Final = 1000
"""Of a process's own words: they go to every page with each look."""
LIMIT_S: Final = 2.0
"""A service that takes longer counts as away in this look."""
MOST_NODES: Final = 64
"""So many nodes are asked how they are; of the others the session guard's word counts."""


class _Health(Health, frozen=True):
    """That of placements says more."""

    stopped: dict[str, str] = msgspec.field(default_factory=dict)
    summaries_stopped: dict[str, str] = msgspec.field(default_factory=dict)
    topics_stopped: dict[str, str] = msgspec.field(default_factory=dict)


def shortened(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all services."""

    at_ms: int = 0
    epoch: int = 0
    trouble: str = ""
    heard_ms_ago: int = 0
    processes: tuple[ProcessShown, ...] = ()
    liveness: tuple[NodeLiveness, ...] = ()
    progress: Progress | None = None
    why: WhyShown = WhyShown(lines=(), by_request={}, streamed={})
    alerts: tuple[Alert, ...] = ()
    pages: int = 0


class Watch:
    """``looked`` is the newest look; the hub's bell rings after each."""

    def __init__(self, upstream: Upstream, mirror: Mirror, hub: Hub, every_s: float) -> None:
        self._upstream = upstream
        self._mirror = mirror
        self._hub = hub
        self._every_s = every_s
        self.looked = Looked()
        self.number = 0
        """Of the look: it counts up."""
        self._stuck_at = -1
        """The epoch at the look before."""

    async def run(self) -> None:
        """Look until cancelled, while anybody has a page open."""
        while True:
            if self._hub.readers:
                self.looked = await self._look()
                self.number += 1
                self._hub.ring()
            await asyncio.sleep(self._every_s)

    async def _look(self) -> Looked:
        processes, liveness, progress = await asyncio.gather(
            self._processes(),
            self._answer("session-guard", "/v1/nodes", list[NodeLiveness]),
            self._answer("coordinator", "/v1/progress", Progress),
        )
        image, silent_s = self._mirror.image, self._mirror.silent_s()
        trouble = self._mirror.trouble or doubt(image.epoch, silent_s, processes)
        self.look_elsewhere(image.epoch, processes)
        return Looked(
            at_ms=time.time_ns() // 1_000_000,
            epoch=image.epoch,
            trouble=trouble,
            heard_ms_ago=round(1000 * silent_s),
            processes=processes,
            liveness=tuple(liveness or ()),
            progress=progress,
            why=why_shown(image, progress),
            alerts=alerts(image, trouble, processes, liveness or (), progress),
            pages=self._hub.readers,
        )

    def look_elsewhere(self, epoch: int, processes: Iterable[ProcessShown]) -> None:
        """Where a metadata-log has more for a whole look, and none of it comes, another stream is followed."""
        if self._stuck_at == epoch < newest_of(processes):
            self._mirror.leave()
        self._stuck_at = epoch

    async def _processes(self) -> tuple[ProcessShown, ...]:
        wanted = [
            *((name, url) for name, urls in self._upstream.services.items() for url in urls),
            *self._nodes(),
        ]
        return tuple(await asyncio.gather(*(self._process(*each) for each in wanted)))

    def _nodes(self) -> list[tuple[str, str]]:
        nodes = self._mirror.image.membership.nodes
        here = [n for n in nodes.values() if n.state is not NodeState.LEFT and not n.excluded]
        here.sort(key=lambda node: node.node_id)
        return [(f"node {node.node_id}", node.address) for node in here[:MOST_NODES]]

    async def _process(self, service: str, url: str) -> ProcessShown:
        began_s = time.perf_counter()
        try:
            answer = await self._upstream.one(f"{url}/healthz", LIMIT_S)
            health = msgspec.json.decode(answer.body, type=_Health)
        except AwayError as error:
            why = str(error).partition("does not answer: ")[2]
            return ProcessShown(service=service, url=url, up=False, ok=False, reason=why)
        except _NO_ANSWERS:
            why = "its answer is none of a service of this project"
            return ProcessShown(service=service, url=url, up=True, ok=False, reason=why)
        return ProcessShown(
            service=service,
            url=url,
            up=True,
            ok=health.ok,
            epoch=health.epoch,
            lag=max(0, self._mirror.image.epoch - health.epoch) if health.epoch else None,
            reason=shortened(health.reason),
            clusters=await self._clusters(
                service,
                url,
                {**health.summaries_stopped, **health.topics_stopped, **health.stopped},
            ),
            answered_ms=round(1000 * (time.perf_counter() - began_s), 1),
        )

    async def _clusters(
        self, service: str, url: str, stopped: dict[str, str]
    ) -> tuple[ClusterShown, ...]:
        """Of placements alone. Without its numbers what is quarantined is still known."""
        if service != "placements":
            return ()
        try:
            answer = await self._upstream.one(f"{url}/metrics", LIMIT_S)
            return clusters_of(answer.body.decode() if answer.ok else "", stopped)
        except (AwayError, ValueError):
            return clusters_of("", stopped)

    async def _answer(self, service: str, path: str, kind: type[T]) -> T | None:
        """None where nobody answers, or not with what is meant."""
        try:
            answer = await self._upstream.ask(service, path, limit_s=LIMIT_S)
            return msgspec.json.decode(answer.body, type=kind) if answer.ok else None
        except (AwayError, *_NO_ANSWERS):
            return None
