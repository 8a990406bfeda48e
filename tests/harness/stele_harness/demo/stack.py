"""The demo's stack: a child that dies with the demo, or one of its own that stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stele.cli.errors import CliError
from stele.cli.places import StackFile, is_held
from stele_harness.demo.timeline import Timeline
from stele_harness.stack.foreground import StackOptions, spawn_detached, starting
from stele_harness.stack.lifecycle import (
    STOP_DEADLINE_S,
    Starting,
    bring_down,
    forget_dead,
    wait_ready,
)
from stele_harness.stack.process import Program, spawn


@contextmanager
def stack_process(options: StackOptions, keep: bool, timeline: Timeline) -> Iterator[Starting]:
    """The stack's process for the length of the block; left running when ``keep`` and all is well.

    Raises CliError.
    """
    if is_held(options.directory):
        raise CliError(
            f"A stack is already running in {options.directory}.",
            f"Stop it: stele stack down --dir {options.directory}",
        )
    options.directory.mkdir(parents=True, exist_ok=True)
    started = _start(options, keep)
    try:
        yield started
    except BaseException:
        keep = False
        raise
    finally:
        if not keep and is_held(options.directory):
            with timeline.out.status("stopping everything"):
                bring_down(options.directory, STOP_DEADLINE_S)


def wait_started(options: StackOptions, started: Starting, timeline: Timeline) -> StackFile:
    """The stack once every service has announced itself. Raises CliError."""
    seen: list[StackFile] = []

    def show(now: StackFile | None) -> None:
        status.update(starting(now))
        if now is not None and not seen:
            seen.append(now)
            brokers = ", ".join(broker.address for broker in now.brokers)
            timeline.note(f"Kafka (KRaft) answers at {brokers}, Redis at {now.redis.url}")

    with timeline.out.status("starting Kafka and Redis") as status:
        stack = wait_ready(options.directory, started, show)
    page = stack.service("console")
    if page is not None:
        timeline.note(f"watch it in the browser: {page.url}")
    names = ", ".join(service.name for service in stack.services)
    timeline.note(f"{len(stack.services)} processes answer: {names}")
    return stack


def _start(options: StackOptions, keep: bool) -> Starting:
    if keep:
        return spawn_detached(options)
    forget_dead(options.directory)
    log = options.directory / "stack.log"
    log.unlink(missing_ok=True)
    return spawn(Program("stack", options.arguments(), log, log))
