"""The cluster around the agents: a metadata-log, a coordinator, the topics, and readers of all.

Agents are processes of one command line. STELE_* variables give them their identity. The watch
receives all of their messages.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from stele.domain.commands import AnyCommand, Envelope
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import NodeState
from stele.domain.recovery import NewLog, Why, recovered
from stele.log.codec import (
    DecodeError,
    decode_ack,
    decode_order,
    decode_report,
    encode_epoch,
    encode_order,
)
from stele.log.commander import Commander
from stele.log.flows import FlowReader, FlowWriter, flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.log.record_builder import ENTROPY_BITS, next_state_id
from stele.runtime.kafka import ensure_topics
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import KafkaSettings, environment_of
from stele_harness.conformance.rules import Broken, Wrong
from stele_harness.conformance.values import Values
from stele_harness.conformance.watch import Watch
from stele_harness.stack.process import Process, Program, spawn

LOOK_S: Final = 0.05
COMMAND_S: Final = 30.0
NOBODY: Final = "redis://127.0.0.1:1/0"
SERVICE_SETTINGS: Final = {
    "STELE_FOUND": "auto",
    "STELE_DEVELOPMENT": "true",
    "STELE_RESEND_S": "0.5",
    "STELE_HEARTBEAT_TIMEOUT_S": "5",
    "STELE_BARRIER_PATIENCE_S": "1",
}
SETTINGS_PREFIX: Final = "STELE_"
NO_SETTINGS_OF_A_CLUSTER: Final = {"STELE_HOME", "STELE_LOG_LEVEL"}
TAIL_LINES: Final = 8


class ServiceEnded(Exception):
    """Raised when one of the kit's services ended: no verdict on the agent is possible."""


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the settings of another cluster.

    For example, ``eval "$(stele stack env)"`` sets the catch-up address of that stack.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(SETTINGS_PREFIX) or name in NO_SETTINGS_OF_A_CLUSTER
    }


def last_words(process: Process) -> str:
    """Return the last whole lines that a process wrote, and the file with all of them."""
    lines = process.tail().splitlines()[-TAIL_LINES:]
    if not lines:
        return "; it wrote nothing"
    return f". It wrote last (all: {process.command.stderr}):\n" + "\n".join(lines)


class KitCluster:
    """The services of the kit. They run, and messages are received, inside ``async with``."""

    def __init__(
        self,
        kafka: KafkaSettings,
        cluster: str,
        folder: Path,
        argv: Sequence[str],
        patience: float = 1.0,
    ) -> None:
        self.patience = patience
        """Factor of all time limits."""
        self.watch = Watch(patience)
        self.orders: list[Order] = []
        self.not_asked = ""
        """Reason why requests were not judged; empty if they were."""
        self.no_columns = ""
        """Reason why rows with columns were not judged; empty if they were."""
        self.agents: dict[str, Process] = {}
        self.values: Values
        self._paused: set[str] = set()
        self._boots: dict[str, int] = {}
        self._kafka = kafka
        self._brokers = kafka.brokers
        self._cluster = cluster
        self._folder = folder
        self._argv = [*argv]
        self._services: dict[str, Process] = {}
        self._stack = AsyncExitStack()
        self._log: KafkaLog
        self._follower: LogFollower
        self._commander: Commander
        self._sender: FlowWriter

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(ensure_topics, self._brokers, self._cluster)
        stack = self._stack
        stack.push_async_callback(self._end)
        self.values = Values(self)
        stack.push_async_callback(self.values.close)
        await self._listen("acks", lambda v: self.watch.on_ack(decode_ack(v), time.monotonic()))
        await self._listen("orders", self._on_order)
        await self._listen(
            "reports", lambda v: self.watch.on_report(decode_report(v), time.monotonic())
        )
        self._log = KafkaLog(self._brokers, flow_topic(self._cluster, "epochs"))
        stack.push_async_callback(self._log.close)
        self._follower = LogFollower(self._log)
        self._follower.listen(lambda image, _: self.watch.on_epoch(image, time.monotonic()))
        self._follower.start()
        self._sender = FlowWriter(self._brokers, flow_topic(self._cluster, "orders"))
        stack.push_async_callback(self._sender.close)
        self._commander = Commander(self._brokers, self._cluster)
        await self._commander.start()
        stack.push_async_callback(self._commander.close)
        self.start_service("metadata_log")
        self.start_service("coordinator")
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def image(self) -> Image:
        return self._follower.image

    def state_of(self, name: str) -> NodeState | None:
        node = self.image.node(name)
        return None if node is None else node.state

    def start_service(self, module: str) -> None:
        env = {"STELE_REDIS_URL": NOBODY, **SERVICE_SETTINGS}
        self._services[module] = self._spawn(module, [sys.executable, "-m", f"stele.{module}"], env)

    def kill_service(self, module: str) -> None:
        self._services.pop(module).kill()

    def start_agent(self, name: str, folder: str = "", **settings: str) -> None:
        """Start an agent.

        ``folder`` is its data directory beside the others; empty: the node's own.
        """
        env = {
            "STELE_NODE_ID": name,
            "STELE_DC": "dc1",
            "STELE_RACK": f"r{int(name[1:]) % 3}",
            "STELE_NUM_TOKENS": "4",
            "STELE_DATA_DIR": str(self._folder / (folder or name)),
            **{f"STELE_{setting}".upper(): value for setting, value in settings.items()},
        }
        self._boots[name] = self.watch.boots_of(name)
        self.agents[name] = self._spawn(name, self._argv, env)

    def copy_directory(self, name: str, folder: str) -> None:
        """Copy the directory of a stopped process, for a later start."""
        shutil.copytree(self._folder / name, self._folder / folder)

    def has_spoken(self, name: str) -> bool:
        """Return True if the newest start of the process has sent an ack."""
        return self.watch.boots_of(name) > self._boots[name]

    def has_ended(self, name: str) -> bool:
        """Return True if the process ended by itself."""
        return self.agents[name].poll() is not None

    def answers(self, name: str) -> bool:
        """Return True if the process runs and is not paused."""
        there = name in self.agents and name not in self._paused
        return there and not self.has_ended(name)

    def kill_agent(self, name: str) -> None:
        """Kill the process with SIGKILL, as in a power failure."""
        self.watch.expect_nothing(name)
        self.agents[name].kill()

    def pause_agent(self, name: str) -> None:
        """Pause the process with SIGSTOP: it answers no request, and its connections stay open."""
        self.watch.expect_nothing(name)
        self._paused.add(name)
        self.agents[name].signal(signal.SIGSTOP)

    def resume_agent(self, name: str) -> None:
        self.agents[name].signal(signal.SIGCONT)
        self._paused.discard(name)
        self.watch.expect_acks(name, time.monotonic())

    async def recover(self) -> None:
        """Continue the log as a new incarnation after its newest epoch.

        The services are stopped.
        """
        now_ms, image = time.time_ns() // 1_000_000, self.image
        log_id = next_state_id(image.log_id, now_ms, secrets.randbits(ENTROPY_BITS))
        state_id = next_state_id(image.state_id, now_ms, secrets.randbits(ENTROPY_BITS))
        new = NewLog(log_id=log_id, state_id=state_id, topic_id="", at_ms=now_ms)
        epoch = recovered(image, new, Why(actor="conformance", reason="a scene"))
        assert isinstance(epoch, Epoch), epoch
        for module in [*self._services]:
            self.kill_service(module)
        self._log.append(encode_epoch(epoch))

    async def command(self, command: AnyCommand) -> None:
        envelope = Envelope(
            request_id=new_request_id(), command=command, actor="conformance", reason="a scene"
        )
        outcome = await self._commander.submit(envelope, COMMAND_S * self.patience)
        if outcome.rejection is not None:
            raise RuntimeError(f"{outcome.rejection.message} {outcome.rejection.hint}")
        await self._follower.wait_for_epoch(outcome.epoch)

    def send(self, order: Order) -> None:
        self._sender.send(order.node_id, encode_order(order))

    async def until(
        self, condition: Callable[[], object], rule: str, name: str, what: str, limit_s: float
    ) -> None:
        """Wait until ``condition`` is true.

        Raises Wrong when it stays false for ``limit_s`` times ``patience``, or the agent's process
        ends first. Raises ServiceEnded when a service ended: that is not the agent's fault.
        """
        limit_s *= self.patience
        end_s = time.monotonic() + limit_s
        while not condition():
            await self.pause()
            self._check_services()
            process = self.agents.get(name)
            code = None if process is None else process.poll()
            if process is not None and code is not None:
                raise Wrong(rule, name, f"no {what}: it ended with {code}{last_words(process)}")
            if time.monotonic() > end_s:
                said = "" if process is None else last_words(process)
                raise Wrong(rule, name, f"no {what} within {limit_s:g} s{said}")

    async def pause(self, seconds: float = LOOK_S) -> None:
        """Wait while the watch checks what is due. Raises Wrong once a rule is broken."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            await asyncio.sleep(min(LOOK_S, seconds))
            self.watch.tick(time.monotonic())
            for broken in self.watch.broken:
                raise Wrong(broken.rule, broken.node_id, broken.what)

    def _check_services(self) -> None:
        for module, process in self._services.items():
            if process.poll() is not None:
                raise ServiceEnded(f"{module} ended with {process.poll()}{last_words(process)}")

    def _on_order(self, value: bytes) -> None:
        order = decode_order(value)
        self.orders.append(order)
        self.watch.on_order(order)

    async def _listen(self, flow: str, on_value: Callable[[bytes], None]) -> None:
        topic = flow_topic(self._cluster, flow)
        reader = FlowReader(self._brokers, topic, on_value, self._unreadable)
        await reader.start()
        self._stack.push_async_callback(reader.close)

    def _unreadable(self, error: DecodeError) -> None:
        self.watch.broken.append(Broken("encoding", "?", str(error)))

    def _spawn(self, name: str, argv: Sequence[str], settings: dict[str, str]) -> Process:
        common = {
            **environment_of(self._kafka),
            "STELE_CLUSTER": self._cluster,
            "STELE_INSTANCE_ID": name,
        }
        return spawn(
            Program(
                name,
                argv,
                stdout=self._folder / f"{name}.out",
                stderr=self._folder / f"{name}.err",
                env={**clean_environment(), **common, **settings},
            )
        )

    async def _end(self) -> None:
        processes = [*self.agents.values(), *self._services.values()]
        await asyncio.gather(*(asyncio.to_thread(p.stop) for p in processes))
