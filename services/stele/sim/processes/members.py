"""The processes of a simulated cluster, each put together from production's parts as its ``__main__`` does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec
from confluent_kafka import KafkaException

from stele.agent.agent import Agent, Flows
from stele.agent.gate import Gate, floor_of
from stele.agent.identity import FILE, Identity, boot
from stele.catch_up.filling import Givers
from stele.catch_up.http import Api
from stele.catch_up.identity import identity_of
from stele.catch_up.keeper import Keeper
from stele.catch_up.replica import (
    Jobs,
    Ports,
    archiving,
    no_mirror,
    own_of,
    recover_and_end,
    working,
)
from stele.catch_up.settings import CatchUpSettings
from stele.catch_up.trimming import Trimmer
from stele.domain.commands import Envelope, Outcome
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.requests.not_taken import BUSY
from stele.log.archive.archive import Archive
from stele.log.commander import NotTakenError
from stele.metadata_log.founding import nothing_older
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import BusyError, ReaderStoppedError, Writer
from stele.metadata_log.writing import recent_records, writing
from stele.runtime.catch_up import CatchUp
from stele.runtime.follow import Followed, following_log, run_beside
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop
from stele.sim.processes.broker import TopicLog
from stele.sim.processes.machine import Machine
from stele.sim.processes.web import WebTransport

if TYPE_CHECKING:
    from stele.sim.processes.world import World

CLUSTER: Final = "sim"
FOLDER: Final = "/data"
COMMIT_S: Final = 8.0
RESEND_S: Final = 2.0

Answer = Callable[[Outcome | None], None]


class LogMachine(Machine):
    """metadata-log: the production writer behind a simulated front door."""

    writer: Writer | None = None

    async def main(self) -> None:
        settings = MetadataLogSettings(
            cluster=CLUSTER, instance_id=self.name, catch_up_urls=self.world.replica_urls
        )
        log, catch_up = TopicLog(self.world.topic, self), self.world.catch_up(self)
        async with writing(
            settings, log, catch_up, nothing_older, lambda writer: None, self.end
        ) as writer:
            self.writer, self.began_at = writer, writer.image.epoch
            self.routes = [recent_route(partial(recent_records, writer))]
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
        """At level ``linearizable``, or ``barrier`` every other time."""
        writer = self.writer
        if writer is None:
            return
        read = writer.barrier if self.chance.random() < 0.5 else writer.linearizable
        noticed = writer.failure is not None
        try:
            image = await read(COMMIT_S)
        except (BusyError, ReaderStoppedError, TimeoutError, KafkaException):
            answer(None)
            return
        self.world.witness.served(self, image, noticed=noticed)
        answer(image)


class FollowerMachine(Machine):
    """Any service that follows the log."""

    followed: Followed | None = None

    async def main(self) -> None:
        log, catch_up = TopicLog(self.world.topic, self), self.world.catch_up(self)
        async with following_log(log, catch_up, CLUSTER, None, self.end) as followed:
            self.followed, self.began_at = followed, followed.follower.image.epoch
            self.routes = [recent_route(followed.recent.records)]
            await asyncio.get_running_loop().create_future()

    def forget(self) -> None:
        super().forget()
        self.followed = None

    @property
    def image(self) -> Image | None:
        return None if self.followed is None else self.followed.follower.image

    @property
    def failure(self) -> Exception | None:
        return None if self.followed is None else self.followed.follower.failure


class NodeMachine(FollowerMachine):
    """A data node, as far as it concerns the log: its directory, its gate, and the agent that acknowledges."""

    gate: Gate | None = None
    accept = ""

    async def main(self) -> None:
        directory = boot(self.folder(), self.name, CLUSTER)
        log, catch_up = TopicLog(self.world.topic, self), self.world.catch_up(self)
        floor = floor_of(directory.identity, self.accept)
        stop = Stop()
        async with following_log(log, catch_up, CLUSTER, floor, self.end) as followed:
            gate = Gate(directory, followed.follower, self.accept)
            flows = Flows(
                send_ack=partial(self._acknowledged, gate), send_report=lambda report: None
            )
            agent = Agent(directory, gate, followed.follower, flows, lambda agent: {})
            self.followed, self.gate = followed, gate
            self.began_at = followed.follower.image.epoch
            self.routes = [recent_route(followed.recent.records)]
            try:
                await gate.reach(followed.caught_up, stop)
                gate.check_host(followed.follower.image)
                await gate.recognise(stop)
                await asyncio.get_running_loop().create_future()
            finally:
                await agent.close()

    def folder(self) -> Path:
        return cast(Path, self.plug.path(FOLDER))

    def identity(self) -> Identity:
        """Made anew where there is none."""
        return boot(self.folder(), self.name, CLUSTER).identity

    def disk_identity(self) -> Identity:
        """What its disk says now."""
        return msgspec.json.decode(self.disk.files[f"{FOLDER}/{FILE}"].data, type=Identity)

    def forget(self) -> None:
        super().forget()
        self.gate = None

    def _acknowledged(self, gate: Gate, ack: Ack) -> None:
        self.world.witness.acknowledged(self, ack)


class ReplicaMachine(Machine):
    """catch-up."""

    lost_its_disk = False
    """Emptied or put back to the past, and not filled again."""
    followed: Followed | None = None
    keeper: Keeper | None = None

    async def main(self) -> None:
        world, folder = self.world, cast(Path, self.plug.path(FOLDER))
        settings = CatchUpSettings(
            cluster=CLUSTER,
            instance_id=self.name,
            catch_up_urls=world.replica_urls,
            data_dir=Path(FOLDER),
            snapshots_kept=world.scenario.snapshots_kept,
        )
        identity = identity_of(folder, self.name, CLUSTER)
        archive = await asyncio.to_thread(Archive, folder, world.segment_limits)
        self.keeper = keeper = Keeper(archive, settings.snapshots_kept, settings.sync_interval_s)
        others = world.catch_up(self)
        givers = Givers(others, None, CLUSTER)
        ports = Ports(
            open_log=lambda: TopicLog(world.topic, self),
            delete=partial(self._delete, archive),
            commander=lambda: commanding(self),
            end=self.end,
        )
        try:
            async with archiving(keeper, givers, ports) as (followed, ends):
                self.followed = followed
                recovering = partial(recover_and_end, keeper, followed, ports)
                api = Api(identity, archive, followed.follower, recovering)
                follower = followed.follower
                trimmer = Trimmer(keeper, lambda: follower.image, identity, None)
                held = partial(own_of, identity, settings, self.url, archive, trimmer)
                jobs = Jobs(folder, identity, keeper, givers, api, trimmer, held, no_mirror)
                work = asyncio.ensure_future(working(jobs, followed, ends, ports))
                stop = Stop()
                async with run_beside(work, stop):
                    self.routes = [*api.routes()]
                    await stop.wait()
                work.result()
        finally:
            await keeper.close()

    def forget(self) -> None:
        super().forget()
        self.followed = None
        self.keeper = None

    @property
    def image(self) -> Image | None:
        return None if self.followed is None else self.followed.follower.image

    @property
    def failure(self) -> Exception | None:
        return None if self.followed is None else self.followed.follower.failure

    def _delete(self, archive: Archive, offset: int) -> None:
        world = self.world
        if not world.network.reaches(self.name, "log"):
            raise TimeoutError("no broker answers")
        world.witness.truncates(self, offset)
        world.topic.delete_before(offset)
        world.trace(f"{self.name} deletes the records before offset {offset}")


class SimCommander:
    """Commands of a process, to whichever metadata-log is there; sent again until they are answered."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        """Raises as ``Commander.submit`` does."""
        machine = self._machine
        async with asyncio.timeout(timeout_s):
            while True:
                outcome = await self._once(envelope)
                why = None if outcome is None or outcome.taken else outcome.rejection
                if why is not None and why.code != BUSY:
                    raise NotTakenError(envelope.request_id, why)
                if outcome is not None and why is None:
                    return outcome
                await asyncio.sleep(0.1 + machine.chance.random())

    async def _once(self, envelope: Envelope) -> Outcome | None:
        machine, world = self._machine, self._machine.world
        target = machine.chance.choice(world.logs)
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome | None) -> None:
            if not future.done():
                future.set_result(outcome)

        def answer(outcome: Outcome | None) -> None:
            world.network.send(target, machine, answered, outcome)

        world.network.send(machine, target, target.serve_command, envelope, answer)
        try:
            async with asyncio.timeout(RESEND_S):
                return await future
        except TimeoutError:
            return None


@asynccontextmanager
async def commanding(machine: Machine) -> AsyncIterator[SimCommander]:
    yield SimCommander(machine)


def catch_up_of(world: "World", machine: Machine) -> CatchUp:
    """The replicas, but for itself."""
    urls = [url for url in world.replica_urls if url != machine.url]
    return CatchUp(urls, WebTransport(machine))
