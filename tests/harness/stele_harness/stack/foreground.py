"""``stele stack up``: the process that runs a stack, in the foreground or detached."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.status import Status
from rich.table import Table

from stele.cli.errors import CliError, Exit
from stele.cli.output import console, error_console, print_line
from stele.cli.places import StackFile, read_stack_file
from stele.runtime.java import KAFKA, SPARK, JavaMissing, find_java
from stele_harness.stack.broker import BrokerFailed
from stele_harness.stack.control import answer_questions, do, note_who_left
from stele_harness.stack.folders import is_node, node_numbers
from stele_harness.stack.jars import JarsMissing
from stele_harness.stack.lifecycle import (
    READY_FILE,
    SETTLE_S,
    forget,
    forget_dead,
    hold,
    settle,
    stack_table,
    wait_ready,
)
from stele_harness.stack.ports import NoFreePort
from stele_harness.stack.redis import RedisFailed
from stele_harness.stack.stack import CDC_CONNECTOR, SERVICES, ServiceSpec, Stack
from stele_harness.stack.supervisor import ChildFailed

TICK_S = 0.25
LOOK_AT_LEFT_S = 10.0
DEVELOPMENT_NOTE = (
    "This is a development cluster (STELE_DEVELOPMENT): its log is on this machine alone, and is lost with its"
    " disk."
)
STACK_FAILURES = (BrokerFailed, JarsMissing, JavaMissing, NoFreePort, RedisFailed, ChildFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The options of ``stele stack up``."""

    directory: Path
    cluster: str = "stele"
    brokers: int = 1
    nodes: int = 3
    without: tuple[str, ...] = ()
    cdc: bool = False
    """True if the connector of change data capture is started too."""
    found: bool = True
    """True if the metadata-log founds an empty log. Otherwise the user founds it."""

    def arguments(self) -> list[str]:
        """Return these options as the command line of a separate process."""
        return [
            *(sys.executable, "-m", "stele.cli", "stack", "up"),
            *("--dir", str(self.directory), "--cluster", self.cluster),
            *("--brokers", str(self.brokers), "--nodes", str(self.nodes)),
            *(part for name in self.without for part in ("--without", name)),
            *(["--cdc"] if self.cdc else []),
            *([] if self.found else ["--no-found"]),
        ]


def java_notes(options: StackOptions) -> list[str]:
    """Return notes about the Java in use, if it is not the first one found.

    Raises CliError when no suitable one exists. This is checked before anything starts. Otherwise
    Kafka would run for a minute beside a Spark that cannot start.
    """
    needs = [KAFKA] if "placements" in options.without else [KAFKA, SPARK]
    try:
        return [note for need in needs if (note := find_java(need).note(need))]
    except JavaMissing as missing:
        without = "Or leave Spark out: `stele stack up --without placements`."
        hint = without if str(missing).startswith(SPARK.who) else ""
        raise CliError(str(missing), hint) from missing


def run_in_foreground(options: StackOptions) -> int:
    """Start the stack and run it until SIGINT or SIGTERM. Raises CliError."""
    out = console()
    for note in java_notes(options):
        print_line(note, out)
    with hold(options.directory), _stop_on_signals() as stop:
        stack = Stack(
            options.directory,
            cluster=options.cluster,
            brokers=options.brokers,
            nodes=_nodes(options),
            services=services_to_start(options.without, cdc=options.cdc),
            env={} if options.found else {"STELE_FOUND": "no"},
        )
        forget(options.directory)
        ready = options.directory / READY_FILE
        try:
            _start(stack, out)
            ready.write_text("")
            _serve(stack, out, stop)
        except KeyboardInterrupt:
            out.print("stopping")
            note_who_left(stack)
        finally:
            ready.unlink(missing_ok=True)
            stack.stop()
    out.print("stopped")
    return Exit.OK


def start_detached(options: StackOptions) -> int:
    """Start the stack as a separate process that outlives this one. Raises CliError."""
    options.directory.mkdir(parents=True, exist_ok=True)
    out = console()
    for note in java_notes(options):
        print_line(note, out)
    exists = (options.directory / "services").exists()
    child = spawn_detached(options)
    with Teller(out) as tell:
        stack = wait_ready(options.directory, child, tell)
    nodes = [each.name for each in stack.services if exists and is_node(each.name)]
    refused = _refused(options.directory, nodes)
    out.print(stack_table(read_stack_file(options.directory) or stack))
    print_line(DEVELOPMENT_NOTE, out)
    where = f" --dir {options.directory}" if options.directory.name != ".stele" else ""
    page = stack.service("console")
    if page is not None:
        print_line(f"The console shows it in the browser: {page.url}", out)
    print_line(f"`stele status{where}` shows the cluster, `stele stack down{where}` stops it.", out)
    for error in refused:
        print_line(error.line(), error_console())
    return Exit.FAILED if refused else Exit.OK


def _refused(directory: Path, names: Iterable[str]) -> list[CliError]:
    """Return why nodes of an existing stack do not run. Each finds out when it has read the log."""
    end_s, found = time.monotonic() + SETTLE_S, list[CliError]()
    for name in names:
        try:
            settle(directory, name, max(0.0, end_s - time.monotonic()))
        except CliError as error:
            found.append(error)
    return found


def spawn_detached(options: StackOptions) -> subprocess.Popen[bytes]:
    """Start the stack's process in its own session; it writes to stack.log. Raises CliError."""
    forget_dead(options.directory)
    with (options.directory / "stack.log").open("wb") as log:
        return subprocess.Popen(
            options.arguments(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def services_to_start(without: tuple[str, ...], *, cdc: bool) -> tuple[ServiceSpec, ...]:
    """Return all services except ``without``, and the connector with ``cdc``.

    Raises CliError for an unknown name.
    """
    known = {spec.name for spec in SERVICES}
    for name in without:
        if name not in known:
            raise CliError(f"There is no service '{name}'.", f"Known: {', '.join(sorted(known))}.")
    chosen = tuple(spec for spec in SERVICES if spec.name not in without)
    return (*chosen, CDC_CONNECTOR) if cdc else chosen


def starting(stack: StackFile | None) -> str:
    """Return a line about the processes that a starting stack waits for."""
    if stack is None:
        return "starting Kafka and Redis"
    names = ", ".join(service.name for service in stack.services)
    return f"Kafka and Redis are up; starting {names}"


class Teller:
    """Shows the progress of a start: a moving line on a terminal, else one line for each change."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._status: Status | None = None
        self._told = ""

    def __enter__(self) -> Teller:
        if self._out.is_terminal:
            self._status = self._out.status(starting(None))
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, stack: StackFile | None) -> None:
        text = starting(stack)
        if self._status is not None:
            self._status.update(text)
        elif text != self._told:
            self._out.print(text, soft_wrap=True)
        self._told = text


def _start(stack: Stack, out: Console) -> None:
    print_line(f"starting in {stack.directory}", out)
    try:
        stack.start()
    except STACK_FAILURES as error:
        message, _, rest = str(error).partition("\n")
        last = rest.strip().splitlines()[-1:] or [""]
        raise CliError(message, last[0].strip()) from error
    print_line(DEVELOPMENT_NOTE, out)
    print_line(f"ready: {stack.url('metadata-log')}", out)
    if "console" in {status.name for status in stack.supervisor.status()}:
        print_line(f"console: {stack.url('console')}", out)


def _serve(stack: Stack, out: Console, stop: threading.Event) -> None:
    live = Live(console=out, refresh_per_second=2, get_renderable=lambda: _screen(stack))
    looked_s = time.monotonic()
    with live if out.is_terminal else _nothing():
        while not stop.wait(TICK_S):
            stack.look_after_servers()
            answer_questions(stack.directory, lambda control: do(stack, control))
            if time.monotonic() - looked_s > LOOK_AT_LEFT_S:
                note_who_left(stack)
                looked_s = time.monotonic()


def _screen(stack: Stack) -> Table:
    now = read_stack_file(stack.directory)
    return stack_table(now) if now is not None else Table()


def _nodes(options: StackOptions) -> int:
    """Return the number of nodes: the requested ones, or more if an earlier stack here had more."""
    return max([options.nodes, *node_numbers(options.directory / "services")])


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event. The first SIGTERM or SIGINT sets it and raises KeyboardInterrupt.

    Later signals are ignored.
    """
    stop = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            return
        stop.set()
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
