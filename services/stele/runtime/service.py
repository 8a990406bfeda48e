"""The life of a service process: settings, loop, signals, exit code.

async def main(stop: Stop) -> None:
    settings = load_settings(MySettings)
    ...
    await serve(app, settings, "my-service", stop)

if __name__ == "__main__":
    raise SystemExit(run_service(main))
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

import structlog

from stele.runtime.logs import configure_logs, get_logger
from stele.runtime.memory import collect_seldom
from stele.runtime.settings import ConfigurationError

# sysexits.h
EXIT_OK = 0
EXIT_USAGE = 64
EXIT_INTERNAL_ERROR = 70
EXIT_BAD_CONFIGURATION = 78

# From the signal to the moment when `main` is cancelled; shorter than what a supervisor grants.
STOP_DEADLINE_S = 10.0

log = get_logger(__name__)


class Stop:
    """Whether the process has been asked to end. One per process, made by `run_service`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        self.is_heeded = False
        """Whether somebody waits for it. Before that the process is still on its way up."""

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Ask for an orderly end; the first reason stays. From the loop's thread only."""
        self.reason = self.reason or reason
        self._event.set()

    async def wait(self) -> None:
        self.is_heeded = True
        await self._event.wait()

    async def sleep(self, delay_s: float) -> bool:
        """Wait for the delay or for the end, whichever is first; True when the end is asked."""
        self.is_heeded = True
        await wait_at_most(self._event, delay_s)
        return self.requested


async def wait_at_most(event: asyncio.Event, limit_s: float) -> None:
    """Wait for the event or the limit, whichever is first.

    ``asyncio.wait_for`` loses a cancel that comes together with the event: a loop around it would never end.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


def run_service(
    main: Callable[[Stop], Awaitable[None]], *, stop_deadline_s: float = STOP_DEADLINE_S
) -> int:
    """Run `main` until it returns; the exit code for the process.

    The first SIGTERM or SIGINT asks for an orderly end, the second one, or the deadline,
    cancels `main`. While `main` is still starting, the first one does.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = spec.name.removesuffix(".__main__") if spec is not None else ""
    if program.startswith("stele.") and sys.argv[1:]:
        return _explain(program, sys.argv[1:])
    collect_seldom()
    if not structlog.is_configured():  # until `main` has read its settings
        configure_logs(service="stele", instance=f"pid-{os.getpid()}")
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_supervise(main, stop_deadline_s))
    except ConfigurationError as error:
        sys.stderr.write(f"{error.title}: {error}\n")
        return EXIT_BAD_CONFIGURATION


def _explain(program: str, arguments: Sequence[str]) -> int:
    """What a process of ours that was given arguments says: it has none."""
    asked = {*arguments} <= {"-h", "--help"}
    usage = (
        f"usage: python -m {program}\n\n"
        "It takes no arguments. STELE_* environment variables configure it, all of which\n"
        "docs/operations/settings.md lists, and SIGTERM ends it. `stele --help` is the command line.\n"
    )
    if asked:
        sys.stdout.write(usage)
        return EXIT_OK
    sys.stderr.write(f"{' '.join(arguments)}: no such argument.\n{usage}")
    return EXIT_USAGE


async def _supervise(main: Callable[[Stop], Awaitable[None]], stop_deadline_s: float) -> int:
    stop = Stop()
    task = asyncio.ensure_future(main(stop))
    loop = asyncio.get_running_loop()
    unfinished = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal unfinished
        if stop.requested:
            task.cancel()
            return
        log.info("stopping", reason=number.name)
        unfinished = not stop.is_heeded
        stop.request(number.name)
        loop.call_later(0.0 if unfinished else stop_deadline_s, task.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    except ConfigurationError:
        raise
    except asyncio.CancelledError:
        if unfinished:
            return EXIT_OK
        log.error("stopped by force", reason=stop.reason, deadline_s=stop_deadline_s)
        return EXIT_INTERNAL_ERROR
    except Exception:
        log.exception("the service failed")
        return EXIT_INTERNAL_ERROR
    return EXIT_OK


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
