"""A stack's brokers and its Redis by name, restarted after a crash in the same way as services.

    running -> (ended) -> backing_off -> running ...
       |                       `-> given_up
       `-> stopped   on request

The owner of a stack calls ``look`` periodically. A simulator that kills and restarts them itself
does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stele.runtime.java import JavaMissing
from stele_harness.stack.broker import Broker, BrokerFailed
from stele_harness.stack.jars import JarsMissing
from stele_harness.stack.redis import RedisFailed, RedisServer
from stele_harness.stack.supervisor import BackOff, ProcessState

Server = Broker | RedisServer
CANNOT_START = (OSError, BrokerFailed, RedisFailed, JavaMissing, JarsMissing)
"""Errors of a start that the next attempt may not have."""


@dataclass(slots=True)
class _Kept:
    server: Server
    state: ProcessState = ProcessState.RUNNING
    restarts: int = 0
    started_at_s: float = 0.0
    back_off: BackOff = field(default_factory=BackOff)


class Servers:
    """All servers of a stack. One thread at a time may change them; any thread may read states."""

    def __init__(
        self, servers: Iterable[Server], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._kept = {server.name: _Kept(server) for server in servers}

    def names(self) -> set[str]:
        return {*self._kept}

    def get(self, name: str) -> Server | None:
        kept = self._kept.get(name)
        return kept.server if kept else None

    def state(self, name: str) -> ProcessState:
        """Return the state. A server that has ended is RUNNING until the next ``look``."""
        return self._kept[name].state

    def restarts(self, name: str) -> int:
        return self._kept[name].restarts

    def look(self) -> bool:
        """Restart servers that have ended without a request, when their time has come.

        Return whether any changed. It does not wait until they answer.
        """
        changed = [self._step(kept, self._clock()) for kept in self._kept.values()]  # check all
        return any(changed)

    def start(self, name: str) -> None:
        """Start a server that does not run, and wait until it answers.

        Raises the errors of the server.
        """
        kept = self._kept[name]
        self._start(kept)
        kept.back_off = BackOff()
        kept.server.wait_ready()

    def stop(self, name: str) -> None:
        """Stop a server in order. It stays down until ``start``."""
        self._kept[name].state = ProcessState.STOPPED
        self._kept[name].server.stop()

    def kill(self, name: str) -> None:
        """Kill a server as if its machine were lost. It stays down until ``start``."""
        self._kept[name].state = ProcessState.STOPPED
        self._kept[name].server.kill()

    def _step(self, kept: _Kept, now_s: float) -> bool:
        if kept.state is ProcessState.RUNNING and not kept.server.is_running():
            kept.server.kill()  # end its child processes
            kept.state = kept.back_off.after_end(kept.started_at_s, now_s)
            return True
        if kept.state is ProcessState.BACKING_OFF and now_s >= kept.back_off.restart_at_s:
            try:
                self._start(kept)
                kept.restarts += 1
            except CANNOT_START:
                kept.state = kept.back_off.after_end(now_s, now_s)
            return True
        return False

    def _start(self, kept: _Kept) -> None:
        kept.server.start()
        kept.started_at_s = self._clock()
        kept.state = ProcessState.RUNNING
