"""Kafka brokers in KRaft mode on one machine, each both broker and controller.

The data directory is formatted once and kept. Ports may differ at every start, which a static
quorum (`controller.quorum.voters`) allows and a dynamic one does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stele.runtime.java import find_java, with_classes_of
from stele_harness.stack.jars import JarSet, classpath, folder_of
from stele_harness.stack.ports import LOOPBACK, Front, PortOf, any_port, no_front
from stele_harness.stack.process import Process, Program, ServerProcess, spawn, tail

MARK: Final = "meta.properties"
"""File that exists once a directory is formatted. It contains the cluster's id."""


# Any fixed id works: a data directory belongs to one stack, and brokers refuse a foreign directory.
CLUSTER_ID = "U3RlbGVTdGVsZVN0ZWxlUQ"

# Measured: 0.75 s to format, once for a directory; 1.9 s to start, 350 MB resident with these flags.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
DEFAULT_HEAP_MB = 512
FORMAT_DEADLINE_S = 240.0
READY_DEADLINE_S = 240.0  # three brokers on a busy machine
METADATA_TIMEOUT_S = 2.0
POLL_S = 0.1
# A broker flushes and hands over its partitions; three stop one after the other.
STOP_DEADLINE_S = 20.0

LOG4J = """\
status = warn
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}} %m%n
appender.file.policy.type = SizeBasedTriggeringPolicy
appender.file.policy.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


class BrokerFailed(Exception):
    """A broker did not start or does not answer. The text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Ports where a broker listens, and public ports for all others.

    They differ only behind a proxy.
    """

    node_id: int
    port: int
    controller_port: int
    public_port: int
    public_controller_port: int

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}"

    @property
    def voter(self) -> str:
        return f"{self.node_id}@{LOOPBACK}:{self.public_controller_port}"


def server_properties(
    me: BrokerAddress, all_brokers: Sequence[BrokerAddress], data: Path
) -> dict[str, str]:
    """Return the broker's configuration. Replication follows the number of brokers."""
    replication_factor = str(min(3, len(all_brokers)))
    min_insync = "2" if len(all_brokers) >= 3 else "1"
    return {
        "process.roles": "broker,controller",
        "node.id": str(me.node_id),
        "controller.quorum.voters": ",".join(a.voter for a in all_brokers),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{me.port},"
        f"CONTROLLER://{LOOPBACK}:{me.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{me.public_port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        # Topics are created explicitly, with their retention.
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": replication_factor,
        "min.insync.replicas": min_insync,
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": min_insync,
        "share.coordinator.state.topic.replication.factor": replication_factor,
        "share.coordinator.state.topic.min.isr": min_insync,
        # 50 partitions each by default: on one machine that is only start-up time.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # 128 MB by default, a quarter of this heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # A killed broker is fenced after this time, 9 s by default. A broker that restarts earlier
        # waits until then, which is the only effect of the value with one broker.
        "broker.session.timeout.ms": "3000" if len(all_brokers) == 1 else "6000",
        # It is the time limit of a heartbeat's request too: three brokers on a busy machine need more.
        "broker.heartbeat.interval.ms": "500" if len(all_brokers) == 1 else "2000",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def _address(number: int, front: Front, port_of: PortOf) -> BrokerAddress:
    name = f"broker-{number}"
    port, controller_port = port_of(name), port_of(f"{name}-controller")
    public = front(name, port), front(name, controller_port)
    return BrokerAddress(number, port, controller_port, *public)


class Broker(ServerProcess):
    """One broker process over one data directory."""

    stop_deadline_s = STOP_DEADLINE_S

    def __init__(
        self,
        directory: Path,
        me: BrokerAddress,
        all_brokers: Sequence[BrokerAddress],
        heap_mb: int,
        java_options: Sequence[str] = (),
    ) -> None:
        self.address = me
        self._directory = directory
        self._all = tuple(all_brokers)
        self._heap_mb = heap_mb
        self._java_options = java_options

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.address.public_port}"

    @property
    def log(self) -> Path:
        return self._directory / "broker.log"

    @property
    def address_text(self) -> str:
        """The address for display."""
        return self.bootstrap

    def start(self) -> None:
        """Format a new directory, then start. `wait_ready` returns when the broker answers."""
        assert not self.is_running(), f"broker {self.address.node_id} is already running"
        properties = self._write_configuration()
        if not (self._data / MARK).exists():
            self._format(properties)
        self._process = self._java("kafka.Kafka", str(properties))

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S, brokers: int = 1) -> None:
        """Return once this broker answers a metadata request naming at least `brokers` brokers."""
        end = time.monotonic() + deadline_s
        direct = f"{LOOPBACK}:{self.address.port}"
        admin = AdminClient({"bootstrap.servers": direct, "log_level": 0})
        while time.monotonic() < end:
            self._fail_when_ended()
            try:
                if len(admin.list_topics(timeout=METADATA_TIMEOUT_S).brokers) >= brokers:
                    return
            except KafkaException:
                pass
            time.sleep(POLL_S)
        raise BrokerFailed(
            f"Broker {self.address.node_id} at {self.bootstrap} did not name {brokers} brokers "
            f"in {deadline_s} s; end of {self.log}:\n{tail(self.log)}"
        )

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def _write_configuration(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "server.properties"
        properties = server_properties(self.address, self._all, self._data)
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        (self._directory / "log4j2.properties").write_text(LOG4J.format(log=self.log))
        return path

    def _format(self, properties: Path) -> None:
        process = self._java(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)
        )
        code = process.wait(FORMAT_DEADLINE_S)
        if code != 0:
            process.kill()
            raise BrokerFailed(
                f"Formatting {self._data} ended with {code}:\n{process.tail()}\n{tail(self.log)}"
            )

    def _java(self, *arguments: str) -> Process:
        java = find_java()
        argv = [
            str(java.program),
            f"-Xmx{self._heap_mb}m",
            *JVM_FLAGS,
            *(self._java_options or with_classes_of(java, folder_of(JarSet.KAFKA))),
            f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}",
            "-cp",
            classpath(JarSet.KAFKA),
            *arguments,
        ]
        console = self._directory / "console.log"
        return spawn(Program(self.name, argv, console, console))

    def _fail_when_ended(self) -> None:
        assert self._process is not None, "start() first"
        code = self._process.poll()
        if code is not None:
            raise BrokerFailed(
                f"Broker {self.address.node_id} ended with {code}; "
                f"end of {self.log}:\n{tail(self.log)}\n{self._process.tail()}"
            )


class BrokerCluster:
    """One or three brokers; three give replication factor 3 with min.insync.replicas 2."""

    def __init__(
        self,
        directory: Path,
        *,
        count: int = 1,
        heap_mb: int = DEFAULT_HEAP_MB,
        front: Front = no_front,
        java_options: Sequence[str] = (),
        port_of: PortOf = any_port,
    ) -> None:
        assert count in (1, 3), "two brokers tolerate no more failures than one"
        addresses = [_address(number, front, port_of) for number in range(1, count + 1)]
        directory = directory.resolve()
        self.brokers = tuple(
            Broker(directory / a.name, a, addresses, heap_mb, java_options) for a in addresses
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(b.bootstrap for b in self.brokers)

    @property
    def replication_factor(self) -> int:
        return len(self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        for broker in self.brokers:
            broker.wait_ready(deadline_s, brokers=len(self.brokers))

    def stop(self) -> None:
        """Stop all at once: a controller that has lost its quorum cannot stop in an orderly way."""
        for broker in self.brokers:
            broker.terminate()
        for broker in self.brokers:
            broker.stop()
