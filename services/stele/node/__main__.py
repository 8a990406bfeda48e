"""``python -m stele.node``: one node of a cluster, configured by STELE_* environment variables."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from starlette.applications import Starlette

from stele.agent.admission import Advertised
from stele.agent.agent import Agent, kafka_agent
from stele.agent.cleanup import Cleaner, Truncator
from stele.agent.gate import CATCHING_UP, Gate
from stele.agent.identity import DataDirectory, boot
from stele.agent.judging import Routing
from stele.agent.load import disk_of, reporting_load
from stele.agent.member import health_of, membership
from stele.agent.orders import OrderHandler
from stele.domain.image import Image
from stele.domain.names import OrderKind
from stele.domain.routed import headers_for
from stele.domain.rules.cdc import confidence_ms
from stele.node import metrics
from stele.node.backups import Backups
from stele.node.binding import bind_store
from stele.node.cells import HybridClock
from stele.node.changes import Changes, expiring
from stele.node.coordinate import Coordination
from stele.node.http import NodeHttp
from stele.node.load import Rates, measured, with_rates
from stele.node.peers import Peers
from stele.node.replica import LocalReplica
from stele.node.restoring import Restorer
from stele.node.settings import MAX_BODY_BYTES, NodeSettings
from stele.node.snapshotting import Snapshotter
from stele.node.store import SqliteStore
from stele.node.streaming import Streamer
from stele.node.wire import Answer, AnyOp
from stele.runtime.follow import Followed
from stele.runtime.http import Health, build_app, listening
from stele.runtime.logs import get_logger
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, locked, run_service, started

NAME = "node"

log = get_logger(__name__)


async def main(stop: Stop) -> None:
    settings = started(NAME, NodeSettings)
    with locked(settings.data_dir):
        directory = boot(settings.data_dir, settings.own_id(), settings.cluster)
        bind_store(directory)
        await _run(settings, directory, stop)


async def _run(settings: NodeSettings, directory: DataDirectory, stop: Stop) -> None:
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(listening(settings, NAME, CATCHING_UP))
        member = await stack.enter_async_context(
            membership(settings, directory, settings.address or listener.url)
        )
        app = await stack.enter_async_context(
            node_app(settings, directory, member.gate, member.advertised, member.followed)
        )
        async with member.admitting(stop):
            await listener.serve(app, stop)


@asynccontextmanager
async def node_app(
    settings: NodeSettings,
    directory: DataDirectory,
    gate: Gate,
    advertised: Advertised,
    followed: Followed,
) -> AsyncIterator[Starlette]:
    """Run the node's HTTP application inside the block."""
    follower = followed.follower
    async with AsyncExitStack() as stack:
        store = SqliteStore(directory.store_path)
        stack.push_async_callback(store.close)
        # Start above every stored timestamp: a clock that jumped back must not lose new writes to
        # old ones.
        clock = HybridClock(lambda: time.time_ns() // 1000, await store.newest_timestamp())
        peers = Peers(lambda node_id: headers_for(follower.image, node_id))
        stack.push_async_callback(peers.close)

        backups = Backups(settings.backup_folder(), directory.identity.node_id)
        stack.push_async_callback(backups.close)
        # Follow before the first new epoch: snapshots deleted while the node was down are swept
        # now.
        backups.follow(follower.image)
        follower.listen(lambda image, _: backups.follow(image))

        def handlers(agent: Agent) -> Mapping[OrderKind, OrderHandler]:
            streamer = Streamer(
                agent.node_id, follower, agent, store, clock, peers, metrics.streamed_bytes.inc
            )
            cleaner = Cleaner(agent.node_id, follower, store, agent.unknown_data)
            return {
                OrderKind.STREAM: streamer.run,
                OrderKind.CLEANUP: cleaner.run,
                OrderKind.TRUNCATE: Truncator(follower, store).run,
                OrderKind.SNAPSHOT: Snapshotter(follower, agent, store, backups).run,
                OrderKind.RESTORE: Restorer(follower, agent, store, clock, backups, peers).run,
            }

        agent = await stack.enter_async_context(
            kafka_agent(
                settings.brokers,
                directory,
                gate,
                follower,
                handlers,
                settings.heartbeat_interval_s,
            )
        )
        rates = Rates(settings.rate_half_life_s)
        await stack.enter_async_context(
            reporting_load(
                settings.brokers,
                settings.cluster,
                agent,
                partial(measured, store, agent.node_id),
                partial(with_rates, rates),
                partial(
                    disk_of,
                    directory.folder,
                    capacity_bytes=settings.data_file_capacity,
                    reusable_bytes=store.free_bytes,
                ),
                settings.load_interval_s,
                metrics.load_failures.inc,
            )
        )
        replica = LocalReplica(
            agent.node_id,
            follower,
            Routing(follower),
            agent,
            store,
            clock,
            rates,
            window_ms=confidence_ms(settings.data_timeout_s),
        )
        coordination = Coordination(
            agent.node_id,
            follower,
            agent,
            _Sender(agent.node_id, replica, peers),
            clock,
            settings.data_timeout_s,
        )
        metrics.epoch.set_function(lambda: follower.image.epoch)
        metrics.version.set_function(lambda: follower.image.topology.version)
        metrics.unknown_data.set_function(lambda: len(agent.unknown_data()))
        restorer = Restorer(follower, agent, store, clock, backups, peers)
        http = NodeHttp(
            settings.cluster,
            advertised,
            gate,
            agent,
            coordination,
            replica,
            restorer,
            store,
            Changes(coordination, clock.now_us),
        )
        await stack.enter_async_context(expiring(store, follower, clock.now_us))
        position = position_route(NAME, settings.instance_id, follower)
        recent = recent_route(followed.recent.records, directory.promised)
        yield build_app(
            NAME,
            [*http.routes(), position, recent],
            lambda: _health(agent, followed, gate, store),
            max_body_bytes=MAX_BODY_BYTES,
        )


def _health(agent: Agent, followed: Followed, gate: Gate, store: SqliteStore) -> Health:
    """Return the health: ok while the node follows the log, may serve, and can write."""
    failure = "" if store.failure is None else str(store.failure)
    return health_of(agent.node_id, followed, gate, failure, agent.unknown_data())


class _Sender:
    """Sends operations to this node's replica directly, and to others through ``Peers``."""

    def __init__(self, node_id: str, replica: LocalReplica, peers: Peers) -> None:
        self._node_id = node_id
        self._replica = replica
        self._peers = peers
        self._loop = asyncio.get_running_loop()

    def __call__(
        self, image: Image, node_id: str, op: AnyOp, until: float
    ) -> asyncio.Future[Answer]:
        if node_id == self._node_id:
            return self._loop.create_task(self._local(op))
        node = image.node(node_id)
        assert node is not None  # a placement names members only
        return self._peers.send(node_id, node.address, op, until)

    async def _local(self, op: AnyOp) -> Answer:
        return (await self._replica.serve([op]))[0]


if __name__ == "__main__":
    raise SystemExit(run_service(main))
