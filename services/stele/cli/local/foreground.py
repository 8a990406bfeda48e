"""``stele stack up``: the process that holds a stack, in the foreground or detached."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.status import Status
from rich.table import Table

from stele.cli.errors import CliError, Exit
from stele.cli.local.control import Answer, Control, answer_questions
from stele.cli.local.lifecycle import READY_FILE, forget_dead, wait_ready
from stele.cli.local.lock import hold
from stele.cli.local.table import stack_table
from stele.cli.output import console
from stele.cli.places import StackFile, read_stack_file
from stele.stack.broker import BrokerFailed
from stele.stack.jars import JarsMissing
from stele.stack.java import JavaMissing
from stele.stack.ports import NoFreePort
from stele.stack.redis import RedisFailed
from stele.stack.stack import SERVICES, ServiceSpec, Stack, node_specs
from stele.stack.supervisor import ChildFailed

TICK_S = 0.25
STACK_FAILURES = (BrokerFailed, JarsMissing, JavaMissing, NoFreePort, RedisFailed, ChildFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What ``stele stack up`` was asked for."""

    directory: Path
    cluster: str = "stele"
    brokers: int = 1
    nodes: int = 3
    without: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The same options as a command line of a process of its own."""
        return [
            *(sys.executable, "-m", "stele.cli", "stack", "up"),
            *("--dir", str(self.directory), "--cluster", self.cluster),
            *("--brokers", str(self.brokers), "--nodes", str(self.nodes)),
            *(part for name in self.without for part in ("--without", name)),
        ]


def run_in_foreground(options: StackOptions) -> int:
    """Start the stack and hold it until SIGINT or SIGTERM. Raises CliError."""
    out = console()
    with hold(options.directory), _stop_on_signals() as stop:
        stack = Stack(
            options.directory,
            cluster=options.cluster,
            brokers=options.brokers,
            nodes=_nodes(options),
            services=services_to_start(options.without),
        )
        ready = options.directory / READY_FILE
        ready.unlink(missing_ok=True)
        try:
            _start(stack, out)
            ready.write_text("")
            _serve(stack, out, stop)
        except KeyboardInterrupt:
            out.print("stopping")
        finally:
            ready.unlink(missing_ok=True)
            stack.stop()
    out.print("stopped")
    return Exit.OK


def start_detached(options: StackOptions) -> int:
    """Start the stack as a process of its own that outlives this one. Raises CliError."""
    options.directory.mkdir(parents=True, exist_ok=True)
    out = console()
    child = spawn_detached(options)
    with out.status("starting Kafka and Redis") as status:
        stack = wait_ready(options.directory, child.poll, lambda now: _tell(status, now))
    out.print(stack_table(stack))
    where = f" --dir {options.directory}" if options.directory.name != ".stele" else ""
    out.print(
        f"`stele status{where}` shows the cluster, `stele stack down{where}` stops it.",
        soft_wrap=True,
    )
    return Exit.OK


def spawn_detached(options: StackOptions) -> subprocess.Popen[bytes]:
    """The stack's process, in a session of its own; it writes to stack.log. Raises CliError."""
    forget_dead(options.directory)
    with (options.directory / "stack.log").open("wb") as log:
        return subprocess.Popen(
            options.arguments(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def services_to_start(without: tuple[str, ...]) -> tuple[ServiceSpec, ...]:
    """All services but those that were left out. Raises CliError for a name that is not one."""
    known = {spec.name for spec in SERVICES}
    for name in without:
        if name not in known:
            raise CliError(f"There is no service '{name}'.", f"Known: {', '.join(sorted(known))}.")
    return tuple(spec for spec in SERVICES if spec.name not in without)


def starting(stack: StackFile | None) -> str:
    """What a stack that starts is waiting for."""
    if stack is None:
        return "starting Kafka and Redis"
    names = ", ".join(service.name for service in stack.services)
    return f"Kafka and Redis are up; starting {names}"


def _tell(status: Status, stack: StackFile | None) -> None:
    status.update(starting(stack))


def _start(stack: Stack, out: Console) -> None:
    out.print(f"starting in {stack.directory}", soft_wrap=True)
    try:
        stack.start()
    except STACK_FAILURES as error:
        message, _, rest = str(error).partition("\n")
        last = rest.strip().splitlines()[-1:] or [""]
        raise CliError(message, last[0].strip()) from error
    out.print(f"ready: {stack.url('metadata-log')}", soft_wrap=True)


def _serve(stack: Stack, out: Console, stop: threading.Event) -> None:
    live = Live(console=out, refresh_per_second=2, get_renderable=lambda: _screen(stack))
    with live if out.is_terminal else _nothing():
        while not stop.wait(TICK_S):
            answer_questions(stack.directory, lambda control: _do(stack, control))


def _screen(stack: Stack) -> Table:
    now = read_stack_file(stack.directory)
    return stack_table(now) if now is not None else Table()


def _do(stack: Stack, control: Control) -> Answer:
    return _kill(stack, control.kill) if control.kill else add_node(stack, control)


def _kill(stack: Stack, name: str) -> Answer:
    """As when its machine is gone: it is not started again."""
    if name not in stack.node_names():
        raise CliError(f"There is no node '{name}'.", f"Known: {', '.join(stack.node_names())}.")
    stack.kill_for_good(name)
    return Answer(name=name)


def add_node(stack: Stack, control: Control) -> Answer:
    """Start one more node; one that replaces another stands where that one does, unless told otherwise."""
    taken = {status.name for status in stack.supervisor.status()}
    number = next(n for n in range(1, len(taken) + 2) if f"n{n}" not in taken)
    spec = node_specs(number)[-1]
    dc, rack = control.dc, control.rack
    if control.replace:
        if control.replace not in stack.node_names():
            known = ", ".join(stack.node_names())
            raise CliError(f"There is no node '{control.replace}'.", f"Known: {known}.")
        dead = stack.node_spec(int(control.replace[1:])).env
        dc, rack = dc or dead["STELE_DC"], rack or dead["STELE_RACK"]
    more = {
        "STELE_REPLACE_NODE": control.replace,
        "STELE_DC": dc,
        "STELE_RACK": rack,
        "STELE_NUM_TOKENS": "" if control.num_tokens is None else str(control.num_tokens),
        "STELE_SHARDS": "" if control.shards is None else str(control.shards),
        "STELE_JOIN": "" if control.join else "no",
    }
    chosen = {name: value for name, value in more.items() if value}
    stack.start_services([stack.choose(spec, chosen)])
    return Answer(name=spec.name, url=stack.url(spec.name))


def _nodes(options: StackOptions) -> int:
    """As many as asked for, and those that a stopped stack over this directory had."""
    folders = (options.directory / "services").glob("n[0-9]*")
    known = [int(path.name[1:]) for path in folders if path.name[1:].isdigit()]
    return max([options.nodes, *known])


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that is set by SIGTERM and SIGINT; while starting they interrupt instead."""
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
