"""``python -m stele.node``: one node of a cluster, configured by STELE_* environment variables."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec
from starlette.applications import Starlette

from stele.domain.image import Image
from stele.domain.names import OrderKind
from stele.log.commander import Commander
from stele.node import metrics
from stele.node.admission import (
    Advertised,
    JoinRejected,
    admit,
    check_place,
    claims_too_much,
    keep_noted,
    wait_for_membership,
)
from stele.node.agent import Agent, kafka_agent
from stele.node.backups import Backups
from stele.node.binding import bind_store
from stele.node.cleanup import Cleaner
from stele.node.clock import HybridClock
from stele.node.coordinate import Coordination
from stele.node.gate import CATCHING_UP, Gate, floor_of
from stele.node.http import NodeHttp
from stele.node.identity import DataDirectory, boot, locked
from stele.node.load import disk_of, reporting_load
from stele.node.orders import OrderHandler
from stele.node.peers import Peers
from stele.node.rates import Rates
from stele.node.replica import Replica
from stele.node.restoring import Restorer
from stele.node.routing import Routing
from stele.node.settings import MAX_BODY_BYTES, NodeSettings
from stele.node.snapshotting import Snapshotter
from stele.node.standing import expelled, join_ended
from stele.node.store import Store
from stele.node.streaming import Streamer
from stele.node.truncation import Truncator
from stele.node.wire import Answer, AnyOp
from stele.runtime.follow import Followed, following
from stele.runtime.http import Health, bind, build_app, serve
from stele.runtime.http_server import url_of
from stele.runtime.logs import configure_logs, get_logger
from stele.runtime.position import position_route
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import load_settings

NAME = "node"

log = get_logger(__name__)


async def main(stop: Stop) -> None:
    settings = load_settings(NodeSettings)
    configure_logs(
        service=NAME,
        instance=settings.own_id(),
        level=settings.log_level,
        json=settings.log_json,
    )
    with locked(settings.data_dir):
        directory = boot(settings.data_dir, settings.own_id(), settings.cluster)
        bind_store(directory)
        await _run(settings, directory, stop)


async def _run(settings: NodeSettings, directory: DataDirectory, stop: Stop) -> None:
    sock = bind(settings.http_host, settings.http_port)
    advertised = Advertised(
        dc=settings.dc,
        rack=settings.rack,
        num_tokens=settings.num_tokens,
        shards=settings.shards,
        replaced_id=settings.replace_node,
        address=settings.address or url_of(sock),
    )
    async with AsyncExitStack() as stack:
        floor = floor_of(directory.identity.acknowledged)
        followed = await stack.enter_async_context(following(settings, floor))
        gate = Gate(directory, followed.follower)
        app = await stack.enter_async_context(
            node_app(settings, directory, gate, advertised, followed)
        )
        admitting = asyncio.create_task(
            _admit(settings, directory, gate, advertised, followed, stop)
        )
        await serve(app, settings, NAME, stop, sock=sock)
        if not admitting.done():
            admitting.cancel()
            await asyncio.wait([admitting])
        if not admitting.cancelled():
            admitting.result()


@asynccontextmanager
async def node_app(
    settings: NodeSettings,
    directory: DataDirectory,
    gate: Gate,
    advertised: Advertised,
    followed: Followed,
) -> AsyncIterator[Starlette]:
    """The node's HTTP application, working inside the block."""
    follower = followed.follower
    async with AsyncExitStack() as stack:
        store = Store(directory.store_path)
        stack.push_async_callback(store.close)
        clock = HybridClock(lambda: time.time_ns() // 1000, await store.newest_timestamp())
        peers = Peers()
        stack.push_async_callback(peers.close)

        backups = Backups(settings.backup_folder(), directory.identity.node_id)
        stack.push_async_callback(backups.close)
        backups.follow(follower.image)
        follower.listen(lambda image, _: backups.follow(image))

        def handlers(agent: Agent) -> Mapping[OrderKind, OrderHandler]:
            streamer = Streamer(
                agent.node_id, follower, agent, store, clock, peers, metrics.streamed_bytes.inc
            )
            cleaner = Cleaner(agent.node_id, follower, store)
            return {
                OrderKind.STREAM: streamer.run,
                OrderKind.CLEANUP: cleaner.run,
                OrderKind.TRUNCATE: Truncator(follower, store).run,
                OrderKind.SNAPSHOT: Snapshotter(follower, agent, store, backups).run,
                OrderKind.RESTORE: Restorer(follower, agent, store, clock, backups, peers).run,
            }

        agent = await stack.enter_async_context(
            kafka_agent(
                settings.kafka_bootstrap,
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
                settings.kafka_bootstrap,
                settings.cluster,
                agent,
                store,
                rates,
                partial(disk_of, directory.folder, capacity_bytes=settings.data_file_capacity),
                settings.load_interval_s,
            )
        )
        replica = Replica(agent.node_id, follower, Routing(follower), agent, store, clock, rates)
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
        restorer = Restorer(follower, agent, store, clock, backups, peers)
        http = NodeHttp(
            settings.cluster, advertised, gate, agent, coordination, replica, restorer, store
        )
        position = position_route(NAME, settings.instance_id, follower)
        yield build_app(
            NAME,
            [*http.routes(), position],
            lambda: _health(directory.identity.node_id, followed, gate, store),
            max_body_bytes=MAX_BODY_BYTES,
        )


def _health(node_id: str, followed: Followed, gate: Gate, store: Store) -> Health:
    """Well while the log is followed, nothing forbids to serve, and the disk takes writes."""
    closed, reason = gate.closed(), ""
    out = expelled(followed.follower.image, node_id)
    if out is not None and not out.wanted:
        reason = f"{out.message} {out.hint}"
    elif store.failure is not None:
        reason = str(store.failure)
    elif gate.failure is not None or (closed is not None and closed.code == CATCHING_UP):
        reason = closed.message if closed is not None else ""
    health = followed.health()
    if not health.ok or not reason:
        return health
    return msgspec.structs.replace(health, ok=False, reason=reason)


class _Sender:
    """Operations to this node's own replica without HTTP, to others through ``Peers``."""

    def __init__(self, node_id: str, replica: Replica, peers: Peers) -> None:
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


async def _admit(
    settings: NodeSettings,
    directory: DataDirectory,
    gate: Gate,
    advertised: Advertised,
    followed: Followed,
    stop: Stop,
) -> None:
    """Become a member, and note what the cluster decides; when it never will be one, the process ends.

    A member opens its gate before it announces what changed: the metadata-log need not be there for that. Only
    who supports less than the log says takes that back first. Who was a member once goes on
    answering why it serves nothing: a supervisor would start it again for ever.
    """
    follower, node_id = followed.follower, directory.identity.node_id
    try:
        await gate.reach(followed.caught_up, stop)
        gate.check_host(follower.image)
        known = follower.image.node(node_id)
        why = join_ended(follower.image, directory.identity)
        if why:
            raise JoinRejected(why)
        check_place(known, advertised)
        waits = settings.join == "no" if known is None else not claims_too_much(known, advertised)
        if waits:
            await gate.recognise(stop)
        async with Commander(settings.kafka_bootstrap, settings.cluster) as commander:
            await admit(directory, advertised, follower, commander, stop)
        await gate.recognise(stop)
        await wait_for_membership(directory, follower, stop)
        await keep_noted(directory, follower, stop)
    except BaseException as error:
        if isinstance(error, Exception):
            log.error("not admitted", why=str(error))
        stop.request(f"not admitted: {error!r}")
        raise


if __name__ == "__main__":
    raise SystemExit(run_service(main))
