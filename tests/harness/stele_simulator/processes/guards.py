"""Session guards, and workers that ask them before each step."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from stele.log.flows import FlowReader, flow_topic
from stele.runtime.announce import announced
from stele.runtime.answers.session_guard import CheckView
from stele.runtime.follow import run_beside
from stele.runtime.position import position_route
from stele.runtime.service import Stop
from stele.session_guard.check import GuardUnavailable, RefusedWrite, check_session, check_version
from stele.session_guard.guard import Guard
from stele.session_guard.http import routes
from stele.session_guard.proof import Proofs
from stele.session_guard.redis_writer import RedisWriter
from stele.session_guard.settings import SessionGuardSettings
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.members import BROKERS, CLUSTER, FollowerMachine
from stele_simulator.processes.redis import Client
from stele_simulator.processes.web import WebTransport

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

THINK_S: Final = 0.6
REMEMBERED: Final = 12
"""Greatest lag of a worker, in reads. Fences exist for such workers."""
CHECK_S: Final = 3.0
OK: Final = 200
SETTINGS: Final = SessionGuardSettings(cluster=CLUSTER)


class GuardMachine(FollowerMachine):
    """session-guard. Acks are read as nodes' other readers do: Faust has threads that nothing simulates."""

    async def main(self) -> None:
        settings = msgspec.structs.replace(SETTINGS, instance_id=self.name)
        async with self.following() as followed, AsyncExitStack() as stack:
            follower = followed.follower
            guard = Guard(follower, settings.heartbeat_timeout_s)
            now_s = asyncio.get_running_loop().time
            proofs = Proofs(follower, settings.guard_ttl_s, now_s)
            stack.push_async_callback(proofs.close)
            redis = cast(Redis, Client(self, self.world.redis))
            writer = RedisWriter(settings, follower, guard, proofs, redis)
            stack.push_async_callback(writer.close)
            topic = flow_topic(CLUSTER, "acks")
            acks = FlowReader(BROKERS, topic, guard.on_ack, lambda _: None)
            await acks.start()
            stack.push_async_callback(acks.close)
            self.routes += [
                position_route("session-guard", self.name, follower),
                *routes(guard, proofs, settings.proof_max_age_s),
            ]
            stop = Stop()
            async with (
                announced(
                    "session-guard",
                    settings,
                    lambda: follower.image,
                    followed.caught_up.is_set,
                    self.build,
                ),
                run_beside(asyncio.ensure_future(writer.run()), stop),
            ):
                await stop.wait()


class Work(NamedTuple):
    """By what somebody works: what the log said at some time."""

    log_id: str
    version: int
    session: str


class WorkerMachine(Machine):
    """Somebody's process: it works by versions and sessions that may be of before, and asks whether it may."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.permitted_us = -1
        """When its newest work was permitted the last time."""
        self._looks: deque[Work] = deque(maxlen=REMEMBERED)

    async def main(self) -> None:
        redis = cast(Redis, Client(self, self.world.redis))
        while True:
            await asyncio.sleep(2 * THINK_S * self.chance.random())
            image = self.world.witness.image
            sessions = sorted(t.session for t in image.topology.open() if t.session)
            session = self.chance.choice(sessions) if sessions else ""
            self._looks.append(Work(image.log_id.hex(), image.topology.version, session))
            is_new = self.chance.random() < 0.4
            work = self._looks[-1] if is_new else self.chance.choice(self._looks)
            if await self._may_go_on(redis, work) and is_new:
                self.permitted_us = self.world.kernel.now_us

    async def _may_go_on(self, redis: Redis, work: Work) -> bool:
        """Ask the guard. The witness checks its answer."""
        if self.chance.random() < 0.3:
            return await self._asked_over_http(work)
        if not work.session or self.chance.random() < 0.5:
            work = work._replace(session="")
        else:  # a session may stay open while versions go by, and who asks for it asks for no version
            work = work._replace(version=-1)
        witness, began_us = self.world.witness, self.world.kernel.now_us
        try:
            if work.session:
                await check_session(redis, CLUSTER, work.session, work.log_id)
            else:
                await check_version(redis, CLUSTER, work.version, work.log_id)
        except (RefusedWrite, GuardUnavailable):
            return False
        witness.permissions.permitted(self, work, began_us, SETTINGS.guard_ttl_s)
        return True

    async def _asked_over_http(self, work: Work) -> bool:
        guard = self.chance.choice(self.world.guards)
        content, began_us = bytearray(), self.world.kernel.now_us
        params = {"version": str(work.version), "log_id": work.log_id}
        if work.session:
            params["session"] = work.session
        try:
            status = await WebTransport(self).ask(
                f"{guard.url}/v1/check", lambda _, piece: content.extend(piece), CHECK_S, params
            )
        except (OSError, TimeoutError):
            return False
        if status != OK or not msgspec.json.decode(bytes(content), type=CheckView).ok:
            return False
        self.world.witness.permissions.permitted(self, work, began_us, SETTINGS.proof_max_age_s)
        self.world.witness.permissions.permitted(
            self, work._replace(version=-1), began_us, SETTINGS.proof_max_age_s
        )
        return True
