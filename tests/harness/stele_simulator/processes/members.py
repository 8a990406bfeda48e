"""The processes of a simulated cluster, each put together from production's parts as its ``__main__`` does."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from confluent_kafka import KafkaError, KafkaException

from stele.agent.embedded import STORE_FILE, open_bound, reporting, working
from stele.agent.gate import Gate
from stele.agent.identity import FILE, DataDirectory, Identity, boot
from stele.agent.identity import STORE_FILE as NODE_STORE_FILE
from stele.agent.member import membership
from stele.agent.settings import AgentSettings
from stele.catch_up.filling import ArchivePeers
from stele.catch_up.identity import identity_of
from stele.catch_up.keeper import Keeper
from stele.catch_up.replica import CatchUpReplica, Ports
from stele.catch_up.settings import CatchUpSettings
from stele.coordinator.driver import Driver, driving
from stele.coordinator.http import routes
from stele.coordinator.settings import CoordinatorSettings
from stele.domain.commands import Envelope, Outcome
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.log.archive.archive import Archive
from stele.log.brokers import Brokers
from stele.log.commander import Commander
from stele.log.flows import flow_topic
from stele.log.follower import Floor
from stele.log.kafka import KafkaLog
from stele.metadata_log.founding import nothing_older
from stele.metadata_log.http import MetadataLogApi
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import BusyError, ReaderStoppedError, Writer
from stele.metadata_log.writing import recent_records, taking_commands
from stele.node.__main__ import node_app
from stele.node.binding import bind_store
from stele.node.settings import NodeSettings
from stele.runtime.announce import announced
from stele.runtime.follow import Followed, following_log, run_beside
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop
from stele.runtime.settings import ServiceSettings
from stele_simulator.processes.embedded_store import Shelf, cells_of
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.records import check_truncation
from stele_simulator.processes.router_clients import rows_of
from stele_simulator.processes.web import WebTransport

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

CLUSTER: Final = "sim"
FOLDER: Final = "/data"
BROKERS: Final = Brokers("log:9092")
EPOCHS_TOPIC: Final = flow_topic(CLUSTER, "epochs")
COMMIT_S: Final = 8.0
READ: Final = ("/v1/epochs", "/v1/state", "/v1/changes", "/v1/diff")
"""Requests of watches and routers to a metadata-log."""

Answer = Callable[[Outcome | None], None]


class LogMachine(Machine):
    """metadata-log: the production writer behind a simulated front door."""

    writer: Writer | None = None

    async def main(self) -> None:
        settings = MetadataLogSettings(
            cluster=CLUSTER, instance_id=self.name, catch_up_urls=self.world.replica_urls
        )
        epochs, past, catch_up = open_log(), open_log(), self.world.catch_up(self)
        async with (
            taking_commands(
                settings, epochs, catch_up, nothing_older, self.end, self.build.features, past
            ) as (writer, _),
            announced(
                "metadata-log", settings, lambda: writer.image, lambda: writer.ready, self.build
            ),
        ):
            self.writer, self.began_at = writer, writer.image.epoch
            self.routes = [recent_route(partial(recent_records, writer))]
            if self.world.watches or self.world.routers:
                served = MetadataLogApi(writer, settings).routes()
                self.routes += [each for each in served if each.path in READ]
            await asyncio.get_running_loop().create_future()

    def forget(self) -> None:
        super().forget()
        self.writer = None

    @property
    def image(self) -> Image | None:
        return None if self.writer is None else self.writer.image

    @property
    def failure(self) -> Exception | None:
        return None if self.writer is None else self.writer.failure

    def serve_command(self, envelope: Envelope, answer: Answer) -> None:
        self.world.witness.log.asks(envelope)
        if self.loop is not None:
            self.loop.create_task(self._commit(envelope, answer))

    async def _commit(self, envelope: Envelope, answer: Answer) -> None:
        writer = self.writer
        if writer is None:
            return
        try:
            await writer.wait_ready(COMMIT_S)
            noticed = writer.failure is not None
            outcome = await writer.commit(envelope, COMMIT_S)
        except (BusyError, ReaderStoppedError, TimeoutError):
            answer(None)
            return
        self.world.witness.decided(self, outcome, noticed=noticed)
        answer(outcome)

    def serve_read(self, answer: Callable[[Image | None], None]) -> None:
        if self.loop is not None:
            self.loop.create_task(self._read(answer))

    async def _read(self, answer: Callable[[Image | None], None]) -> None:
        """Read at level ``linearizable``, whose own record is behind all that was durable, or ``barrier`` every
        other time. A barrier may miss epochs behind the end that an outdated leader reports.
        """
        writer = self.writer
        if writer is None:
            return
        asked = self.world.read_availability.begins(self)
        is_barrier = self.chance.random() < 0.5
        read = writer.barrier if is_barrier else writer.linearizable
        noticed, witness = writer.failure is not None, self.world.witness
        least, began_us = witness.epoch_of(witness.head), self.world.kernel.now_us
        least += not is_barrier
        try:
            await writer.wait_ready(COMMIT_S)
            image = await read(COMMIT_S)
        except (BusyError, ReaderStoppedError, TimeoutError, KafkaException) as error:
            self.world.read_availability.fails(asked, error)
            answer(None)
            return
        self.world.read_availability.answered(asked)
        witness.served(self, image, noticed=noticed)
        told_us = self.world.stale_leaders.told_since([self.name], began_us)
        may_miss = is_barrier and told_us is not None
        witness.has_read(self, image, 0 if may_miss else least, began_us)
        answer(image)


class FollowerMachine(Machine):
    """A process that follows the log."""

    followed: Followed | None = None

    @asynccontextmanager
    async def following(self, floor: Floor | None = None) -> AsyncIterator[Followed]:
        log, catch_up = open_log(), self.world.catch_up(self)
        reading = following_log(log, catch_up, CLUSTER, floor, self.end, self.build.features)
        async with reading as followed:
            self.followed, self.began_at = followed, followed.follower.image.epoch
            self.routes = [recent_route(followed.recent.records)]
            yield followed

    async def serve(
        self,
        service: str,
        settings: ServiceSettings,
        followed: Followed,
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Announce the service, and do its work until it is stopped. Raises what the work raises."""
        follower, stop = followed.follower, Stop()
        task, is_read = asyncio.ensure_future(work), followed.caught_up.is_set
        async with (
            announced(service, settings, lambda: follower.image, is_read, self.build),
            run_beside(task, stop),
        ):
            await stop.wait()
        task.result()

    def forget(self) -> None:
        super().forget()
        self.followed = None

    @property
    def image(self) -> Image | None:
        return None if self.followed is None else self.followed.follower.image

    @property
    def failure(self) -> Exception | None:
        return None if self.followed is None else self.followed.follower.failure


class CoordinatorMachine(FollowerMachine):
    """coordinator."""

    driver: Driver | None = None

    async def main(self) -> None:
        settings = CoordinatorSettings(cluster=CLUSTER, instance_id=self.name)
        async with (
            self.following() as followed,
            driving(settings, followed, WebTransport(self)) as driver,
        ):
            self.driver = driver
            position = position_route("coordinator", self.name, followed.follower)
            self.routes += [position, *routes(driver)]
            await self.serve("coordinator", settings, followed, driver.run())

    def forget(self) -> None:
        super().forget()
        self.driver = None


class NodeMachine(FollowerMachine):
    """A node: its directory, its gate, acks, orders, and the way into the cluster; its store."""

    gate: Gate | None = None
    accept = ""
    store_file = NODE_STORE_FILE
    folders = 0
    """Number of deleted folders: each node of this machine has its own name."""

    replaces = ""
    waits = False
    """The dead node whose place it asks for."""
    kept: tuple[str, dict[str, bytes]] | None = None
    """Id and disk of that node, in case the cluster needs it."""
    node_id = ""
    initial_tokens = ""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.node_id = name

    @property
    def rack(self) -> str:
        scenario = self.world.scenario
        return f"r{1 + (int(self.name[1:]) - 1) // scenario.dcs % scenario.racks}"

    @property
    def dc(self) -> str:
        return f"dc{1 + (int(self.name[1:]) - 1) % self.world.scenario.dcs}"

    @property
    def shards(self) -> int:
        return self.world.scenario.shards.get(self.name, 1)

    async def main(self) -> None:
        directory = self._begin()
        bind_store(directory)
        settings = NodeSettings(
            cluster=CLUSTER,
            instance_id=self.node_id,
            dc=self.dc,
            rack=self.rack,
            num_tokens=1,
            initial_tokens=self.initial_tokens,
            shards=self.shards,
            replace_node="" if self.waits else self.replaces,
            join="no" if self.waits else "auto",
            accept_lost_epochs=self.accept,
            data_dir=self.folder(),
        )
        stop = Stop()
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(
                membership(settings, directory, self.url, self.following, self.build)
            )
            self.gate = node.gate
            app = await stack.enter_async_context(
                node_app(settings, directory, node.gate, node.advertised, node.followed)
            )
            self.routes = [*app.routes]
            async with node.admitting(stop):
                await stop.wait()

    def renew(self, replaces: str = "", *, waits: bool = False) -> None:
        """Delete its folder. It joins as a new node, or replaces a dead one, either by its own request or,
        with ``waits``, by another's.
        """
        self.crash()
        self.world.witness.barriers.buries(self)
        self.kept = (replaces, self.disk.copy()) if replaces else None
        self.disk.wipe()
        self.folders += 1
        self.node_id = f"{self.name}-{self.folders}"
        self.replaces, self.waits = replaces, waits
        self.accept, self.is_refused = "", False
        self.start_later(1.0)

    def is_wanted_back(self, image: Image) -> bool:
        """The new node was refused, or rejected and does not know it yet, and the old one not given up."""
        row = image.node(self.replaces) if self.kept is not None else None
        if row is None or row.excluded_since or row.state is NodeState.LEFT:
            return False
        own = image.node(self.node_id)
        return self.is_refused or (own is not None and own.state is NodeState.LEFT)

    def put_back(self) -> None:
        """The old node's disk again."""
        assert self.kept is not None
        self.world.trace(
            f"{self.node_id} does not come in the place of {self.replaces}, which is put back"
        )
        self.crash()
        self.disk.wipe()
        self.node_id, files = self.kept
        self.disk.put_back(files)
        self.kept, self.replaces, self.is_refused = None, "", False
        self.start_later(1.0)

    def folder(self) -> Path:
        return cast(Path, self.plug.path(FOLDER))

    def _begin(self) -> DataDirectory:
        directory = self._boot()
        self.world.swaps.began(self)
        return directory

    def _boot(self) -> DataDirectory:
        return boot(self.folder(), self.node_id, CLUSTER, self.store_file, self.build.features)

    def identity(self) -> Identity:
        """Return the identity, creating it if there is none."""
        return self._boot().identity

    def disk_identity(self) -> Identity:
        """Return the identity on its disk."""
        return msgspec.json.decode(self.disk.files[f"{FOLDER}/{FILE}"].data, type=Identity)

    def open_store(self, content: bytes) -> sqlite3.Connection:
        """Open the store on its disk for reading."""
        engine = sqlite3.connect(":memory:")
        engine.deserialize(content)
        return engine

    def forget(self) -> None:
        super().forget()
        self.gate = None


class EmbeddedMachine(NodeMachine):
    """A store that embeds the agent; its clients have routers."""

    store_file = STORE_FILE

    async def main(self) -> None:
        directory = self._begin()
        shelf = open_bound(directory, Shelf)
        settings = AgentSettings(
            cluster=CLUSTER,
            instance_id=self.node_id,
            dc=self.dc,
            rack=self.rack,
            num_tokens=1,
            shards=self.shards,
            data_dir=self.folder(),
            replace_node="" if self.waits else self.replaces,
            join="no" if self.waits else "auto",
            accept_lost_epochs=self.accept,
        )
        stop = Stop()
        async with membership(settings, directory, self.url, self.following, self.build) as node:
            self.gate = node.gate
            async with (
                working(settings, node, shelf, WebTransport(self)) as member,
                reporting(settings, member, shelf),
            ):
                self.routes = [*member.routes(), *rows_of(member, shelf)]
                async with node.admitting(stop):
                    await stop.wait()

    def open_store(self, content: bytes) -> sqlite3.Connection:
        return cells_of(content)


class ReplicaMachine(FollowerMachine):
    """catch-up."""

    lost_its_disk = False
    """Emptied or put back to the past, and not filled again."""
    keeper: Keeper | None = None

    async def main(self) -> None:
        world, folder = self.world, cast(Path, self.plug.path(FOLDER))
        settings = CatchUpSettings(
            cluster=CLUSTER,
            instance_id=self.name,
            catch_up_urls=world.replica_urls,
            data_dir=folder,
            snapshots_kept=world.scenario.snapshots_kept,
        )
        identity = identity_of(folder, self.name, CLUSTER)
        archive = await asyncio.to_thread(
            Archive, folder, world.segment_limits, self.build.features
        )
        peers = ArchivePeers(world.catch_up(self), None, CLUSTER)
        ports = Ports(
            open_log=open_log,
            is_topic_missing=_it_is_there,
            make_topic=_it_is_there,
            delete=partial(self._delete, archive),
            commander=lambda: Commander(BROKERS, CLUSTER),
            end=self.end,
        )
        replica = CatchUpReplica(settings, identity, self.url, archive, peers, ports)
        self.keeper, stop = replica.keeper, Stop()
        try:
            async with replica.running(stop, self.build) as (followed, api):
                self.followed = followed
                position = position_route("catch-up", identity.replica_id, followed.follower)
                self.routes = [*api.routes(), position]
                await stop.wait()
        finally:
            await replica.keeper.close()

    def forget(self) -> None:
        super().forget()
        self.keeper = None

    def _delete(self, archive: Archive, offset: int) -> None:
        world = self.world
        if not world.network.reaches(self.name, "log"):
            raise TimeoutError("no broker answers")
        if offset > world.topic.high:  # of a recreated topic
            raise KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
        check_truncation(world, self, offset)
        world.topic.delete_before(offset)
        world.trace(f"{self.name} deletes the records before offset {offset}")


def open_log() -> KafkaLog:
    """Production's log on the simulated Kafka."""
    return KafkaLog(BROKERS, EPOCHS_TOPIC)


async def _it_is_there() -> bool:
    """The simulated topic is never missing."""
    return False
