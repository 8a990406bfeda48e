"""The rungs of the fixture ladder: a container, or processes of this machine."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from stele_harness.stack.broker import BrokerCluster
from stele_harness.stack.ports import LOOPBACK, free_port
from stele_harness.stack.redis import RedisServer

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

GIVEN_KAFKA = "STELE_TEST_KAFKA"
GIVEN_REDIS = "STELE_TEST_REDIS"
KAFKA_IMAGE = "apache/kafka:4.3.1"
DOCKER_TIMEOUT_S = 5
CONTAINER_READY_S = 60


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Bootstrap servers of the broker of a run (one node, replication factor 1)."""
    given = os.environ.get(GIVEN_KAFKA)
    if given:
        yield given
        return
    with container_broker() as bootstrap:
        if bootstrap is not None:
            yield bootstrap
            return
    with local_broker(directory) as bootstrap:
        yield bootstrap


@contextmanager
def redis(directory: Path) -> Iterator[str]:
    """URL of the Redis or Valkey server of a run."""
    given = os.environ.get(GIVEN_REDIS)
    if given:
        yield given
        return
    with local_redis(directory) as url:
        yield url


@contextmanager
def local_broker(directory: Path, count: int = 1) -> Iterator[str]:
    """Bootstrap servers of one or three brokers on the local JVM."""
    brokers = BrokerCluster(directory, count=count)
    try:
        brokers.start()
        brokers.wait_ready()
        yield brokers.bootstrap
    finally:
        brokers.stop()


@contextmanager
def local_redis(directory: Path) -> Iterator[str]:
    """URL of a Redis server on this machine."""
    server = RedisServer(directory)
    try:
        server.start()
        server.wait_ready()
        yield server.url
    finally:
        server.stop()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server of S3's protocol in this process."""
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


class S3Server:
    """It keeps what it is given in memory, also while it is stopped, and looks at no signatures."""

    def __init__(self) -> None:
        self._port = 0
        self._server: ThreadedMotoServer | None = None
        self.environment = {
            "AWS_ACCESS_KEY_ID": "stele",
            "AWS_SECRET_ACCESS_KEY": "of the tests",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """At the port that it had before."""
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
        self._server = ThreadedMotoServer(LOOPBACK, self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def new_bucket(self) -> str:
        """The name of an empty one."""
        name = f"stele-{uuid.uuid4().hex}"
        httpx.put(f"{self.endpoint}/{name}", timeout=240).raise_for_status()
        return name


@contextmanager
def container_broker() -> Iterator[str | None]:
    """Bootstrap servers of a broker in a container; None without Docker or without the image."""
    if not _image_is_here():
        yield None
        return
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    testcontainers_config.ryuk_disabled = True  # its image would be pulled
    port = free_port()
    container = (
        DockerContainer(KAFKA_IMAGE)
        .with_bind_ports(9092, port)
        .with_env("KAFKA_NODE_ID", "1")
        .with_env("KAFKA_PROCESS_ROLES", "broker,controller")
        .with_env("KAFKA_LISTENERS", "PLAINTEXT://:9092,CONTROLLER://:9093")
        .with_env("KAFKA_ADVERTISED_LISTENERS", f"PLAINTEXT://{LOOPBACK}:{port}")
        .with_env("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER")
        .with_env(
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        )
        .with_env("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9093")
        .with_env("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1")
        .with_env("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1")
        .with_env("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1")
        .with_env("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0")
        .with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    )
    started = LogMessageWaitStrategy("Kafka Server started")
    container.waiting_for(started.with_startup_timeout(CONTAINER_READY_S))
    with container:
        yield f"{LOOPBACK}:{port}"


def _image_is_here() -> bool:
    """Docker answers and has the image; it is never pulled."""
    try:
        import docker

        client = docker.from_env(timeout=DOCKER_TIMEOUT_S)
        try:
            client.images.get(KAFKA_IMAGE)
        finally:
            client.close()
    except Exception:
        return False
    return True
