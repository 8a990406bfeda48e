"""Replacements for time, randomness, threads and Kafka, which production code takes from its
machine.

Inside ``interposed`` every module of ours gets them from the process that runs.
"""

import random
import shutil
import sqlite3
import sys
import threading as real_threading
import time as real_time
import types
import uuid as real_uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import aiohttp
import confluent_kafka
from confluent_kafka import admin
from stamina import instrumentation
from structlog.stdlib import BoundLogger

from stele.log import clocks
from stele.metadata_log import writing
from stele.runtime import follow
from stele_simulator.kernel import Clock
from stele_simulator.patching import Patch
from stele_simulator.processes.kafka import AdminClient, Consumer, Producer
from stele_simulator.processes.module_stand_in import ModuleStandIn
from stele_simulator.processes.sqlite import Sqlite
from stele_simulator.processes.stand_ins import Aiohttp, Shutil
from stele_simulator.processes.threads import Executor, Threads

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine

OURS: Final = "stele."
BOOT_CLOCK: Final = "CLOCK_BOOTTIME"
REAL_CLOCKS: Final = (
    "clock_gettime_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
)
"""Clocks that simulated processes have no other one for."""
OF_THE_MACHINE: Final = ("uuid1", "getnode")


class Runs(Protocol):
    """A running process: its clock, its randomness, and the target of its log lines."""

    clock: Clock
    chance: Random

    def note(self, level: str, text: str, values: dict[str, object]) -> None: ...


class Current:
    """The process that runs now; ``default`` between turns."""

    def __init__(self, default: Runs) -> None:
        self.default = default
        self.who: Runs = default


class Time(ModuleStandIn):
    """As the module ``time``, by the clock of who runs."""

    absent = REAL_CLOCKS

    def monotonic(self) -> float:
        return float(self._who().clock.monotonic_s())

    perf_counter = monotonic

    def monotonic_ns(self) -> int:
        return round(self.monotonic() * 1e9)

    perf_counter_ns = monotonic_ns

    def time(self) -> float:
        return float(self._who().clock.wall_ms() / 1000)

    def time_ns(self) -> int:
        return int(self._who().clock.wall_ms() * 1_000_000)

    def clock_gettime(self, _: object) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing blocks in the simulator: {seconds} s")


class Secrets(types.ModuleType):
    def __init__(self, current: Current) -> None:
        super().__init__("secrets")
        self._current = current

    def randbits(self, bits: int) -> int:
        return self._current.who.chance.getrandbits(bits)


class Chance(ModuleStandIn):
    """As the module ``random``, as far as it is the system's chance."""

    def SystemRandom(self) -> Any:  # noqa: N802 - the module's own name
        return self._who().chance


class Uuid(ModuleStandIn):
    """As the module ``uuid``, with the randomness of who runs."""

    absent = OF_THE_MACHINE

    def uuid4(self) -> real_uuid.UUID:
        return real_uuid.UUID(int=self._who().chance.getrandbits(128), version=4)


class Lines:
    """A logger whose lines go to who runs."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def __getattr__(self, level: str) -> Callable[..., None]:
        def note(text: str, *_: object, **values: object) -> None:
            self._current.who.note(level, text, values)

        return note


@contextmanager
def interposed(current: Current, seed: str) -> Iterator[Patch]:
    """Inside the block; the patch takes what else is to be different in this run."""
    import secrets

    def who() -> Runs:
        return current.who

    stand_ins = {
        id(secrets): Secrets(current),
        id(ThreadPoolExecutor): lambda *given: Executor(_machine(current), *given),
        id(real_time): Time(real_time, who),
        id(random): Chance(random, who),
        id(real_uuid): Uuid(real_uuid, who),
        id(real_threading): Threads(real_threading, who),
        id(sqlite3): Sqlite(sqlite3, who),
        id(shutil): Shutil(shutil, who),
        id(aiohttp): Aiohttp(aiohttp, who),
        id(admin.AdminClient): lambda given: AdminClient(_machine(current), given),
        id(confluent_kafka.Consumer): lambda given: Consumer(_machine(current), given),
        id(confluent_kafka.Producer): lambda given: Producer(_machine(current), given),
    }
    lines, state = Lines(current), random.getstate()
    with Patch() as patch:
        for name in sorted(sys.modules):
            if not name.startswith(OURS):
                continue
            module = sys.modules[name]
            for attribute, value in sorted(vars(module).items(), key=lambda item: item[0]):
                if id(value) in stand_ins:
                    patch.attribute(module, attribute, stand_ins[id(value)])
                elif attribute == "log" and _is_logger(value):
                    patch.attribute(module, attribute, lines)
        for module in (writing, follow):
            patch.attribute(module, "freeze_objects", lambda: None)
        patch.attribute(clocks, "_HAS_BOOT_CLOCK", False)
        random.seed(seed)  # pauses between retries
        hooks = instrumentation.get_on_retry_hooks()
        instrumentation.set_on_retry_hooks([])
        try:
            yield patch
        finally:
            random.setstate(state)
            instrumentation.set_on_retry_hooks(hooks)


def _machine(current: Current) -> "Machine":
    """Return the machine of the process that runs now, which owns what is created."""
    return cast("Machine", current.who)


def _is_logger(value: object) -> bool:
    return isinstance(value, BoundLogger) or type(value).__name__ == "BoundLoggerLazyProxy"
