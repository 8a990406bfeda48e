"""No module under simulation has the machine's clock, randomness or sockets under another name."""

import inspect
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import tomllib
import types
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import stele
from stele.node.load import Rates
from stele_simulator.kernel import Clock, Kernel
from stele_simulator.processes.interposed import OURS, Current, interposed
from stele_simulator.processes.run import Nobody

NOT_SIMULATED = ("sim", "cli")
"""Folders without simulation. The simulated operator uses questions and choices of the command line."""
PAGE = Path(stele.__file__).parents[2] / "pyproject.toml"
CLOCKS = (
    *("clock_gettime", "clock_gettime_ns", "monotonic", "monotonic_ns", "perf_counter"),
    *("perf_counter_ns", "process_time", "process_time_ns", "sleep", "thread_time"),
    *("thread_time_ns", "time", "time_ns"),
)
REAL = {
    time: CLOCKS,
    random: tuple(name for name in random.__all__ if name != "Random"),
    secrets: tuple(secrets.__all__),
    uuid: ("getnode", "uuid1", "uuid4"),
    os: ("fsync", "getrandom", "open", "urandom"),
    socket: ("create_connection", "create_server", "socket"),
    threading: ("Event", "Semaphore", "Thread"),
}
"""By module what simulated processes have in another way, or not at all. ``random.Random`` needs a seed."""
ABSENT = {os: REAL[os], socket: REAL[socket]}
"""These modules stay as they are: archives and disks of the simulator never come to their functions."""


def _rooms() -> set[str]:
    """Return the folders where the linter refuses ``from time import ...``."""
    ignored = tomllib.loads(PAGE.read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    (rooms,) = (files for files, rules in ignored.items() if rules == ["ICN003"])
    return {*rooms.partition("{")[2].partition("}")[0].split(",")}


def _real() -> dict[int, str]:
    return {
        id(getattr(module, name)): f"{module.__name__}.{name}"
        for module, names in REAL.items()
        for name in names
        if hasattr(module, name)
    }


def _values(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """Return the values of a module, including its classes, and the defaults of all their functions."""
    for name, value in sorted(vars(module).items(), key=lambda item: item[0]):
        yield name, value
        if getattr(value, "__module__", None) != module.__name__:
            continue
        yield from _defaults(name, value)
        if inspect.isclass(value):
            for attribute, part in vars(value).items():
                yield f"{name}.{attribute}", part
                yield from _defaults(f"{name}.{attribute}", inspect.unwrap(part))
            for field in getattr(value, "__dataclass_fields__", {}).values():
                yield f"{name}.{field.name}", field.default_factory


def _defaults(name: str, value: object) -> Iterator[tuple[str, object]]:
    if inspect.isfunction(value):
        given = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        yield from ((f"{name}()", each) for each in given)


def _leaks() -> list[str]:
    real, rooms = _real(), _rooms()
    return [
        f"{module}: {name} is {real[id(value)]}"
        for module in sorted(sys.modules)
        if module.startswith(OURS) and module.split(".")[1] in rooms
        for name, value in _values(sys.modules[module])
        if id(value) in real
    ]


def test_simulated_module_has_no_real_object_under_another_name() -> None:
    with interposed(Current(Nobody(0)), "leaks"):
        assert _leaks() == []


@pytest.mark.parametrize(
    "source",
    [
        "from time import monotonic",
        "from uuid import uuid4 as new_id",
        "from random import random",
        "from socket import create_connection",
        "import os; chance = os.urandom",
        "import time\ndef wait(clock=time.monotonic): ...",
        "import time\ndef wait(*, clock=time.monotonic): ...",
        "import time\nclass Held:\n    clock = time.time",
        "import time\nclass Held:\n    def wait(self, clock=time.time): ...",
        "import time, dataclasses\n@dataclasses.dataclass\nclass Held:\n"
        "    at: float = dataclasses.field(default_factory=time.time)",
    ],
)
def test_real_object_under_another_name_is_found(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("stele.node.planted")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source, vars(module))
    with interposed(Current(Nobody(0)), "leaks"):
        (found,) = _leaks()
    assert found.startswith("stele.node.planted: ")


def test_replacement_of_a_module_exposes_nothing_real() -> None:
    """A replacement forwards unknown names to the module, which may have clocks and randomness."""
    module, real = types.ModuleType("stele.node.planted"), _real()
    for held in REAL.keys() - ABSENT.keys():
        setattr(module, held.__name__, held)
    sys.modules[module.__name__] = module
    try:
        with interposed(Current(Nobody(0)), "leaks"):
            given = [
                f"{held.__name__}.{name}"
                for held in REAL.keys() - ABSENT.keys()
                if held is not random  # seeded during the simulation
                for name in REAL[held]
                if id(getattr(getattr(module, held.__name__), name, None)) in real
            ]
    finally:
        del sys.modules[module.__name__]
    assert given == []


def test_rates_use_the_clock_of_the_running_process() -> None:
    nobody = Nobody(0)
    kernel = Kernel("rates")
    nobody.clock = Clock(kernel)
    with interposed(Current(nobody), "rates"):
        told_s = Rates(1.0)._clock()
        kernel.run_until(7_000_000)
        assert Rates(1.0)._clock() - told_s == 7.0


def test_every_simulated_folder_is_known_to_the_linter() -> None:
    """A separate process runs this: the current one may have imported more."""
    code = "import sys; from stele_simulator.processes import run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = [name.split(".") for name in done.stdout.split() if name.startswith(OURS)]
    rooms = {name for _, name, *_ in parts}
    assert {"node", "log", "coordinator"} <= rooms - {*NOT_SIMULATED} <= _rooms()
