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
import atexit
import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import structlog

from stele.log.loops import works_beside
from stele.runtime.logs import configure_logs, get_logger
from stele.runtime.settings import ConfigurationError, ServiceSettings, load_settings, misspelt

# Memory of a process: Python's cycle collector, and the allocator of the C libraries.
#
# Images, marks and recent records are immutable trees. Reference counts free them, so the collector
# never finds garbage there. With its usual thresholds it walked them all the time. At 128 clients,
# commits by HTTP fell from 6,000 to 3,900 a second while the log grew by some hundred thousand
# epochs. The slowest took 0.3 s.
#
# glibc gives each thread one of eight arenas per core, and does not return what one of them has
# free to another. While brokers are away, Kafka clients are made again after each failure, with new
# threads. Each process then grew by 2.5 MB a minute without end. With few arenas it stays below 0.5
# MB a minute.


THRESHOLDS: Final = (20_000, 20, 50)
"""New objects per collection of the youngest generation; collections of one per collection of
the next.
"""

MAX_ARENAS: Final = 2
"""One is for the main thread, and one for all threads of Kafka clients."""
_M_ARENA_MAX: Final = -8
"""From glibc's malloc.h."""


def share_arenas() -> bool:
    """Limit glibc's arenas. Call it once, before the process starts threads.

    Return False if the environment has a limit already, or the C library has no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or "MALLOC_ARENA_MAX" in os.environ:
        return False
    return bool(mallopt(_M_ARENA_MAX, MAX_ARENAS))


def collect_seldom() -> None:
    """Raise the thresholds. Call it once at the start of a process."""
    gc.set_threshold(*THRESHOLDS)


def freeze_objects() -> None:
    """Collect once, then exclude all present objects from later collections."""
    gc.collect()
    gc.freeze()


# sysexits.h
EXIT_OK = 0
EXIT_USAGE = 64
EXIT_INTERNAL_ERROR = 70
EXIT_BAD_CONFIGURATION = 78

FREE_SPACE: Final = "Free some space and start it again. Stored data is intact."
# From the signal to the moment when `main` is cancelled; shorter than what a supervisor grants.
STOP_DEADLINE_S = 10.0

log = get_logger(__name__)


class Stop:
    """The request to end the process. One per process, created by `run_service`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        self.is_heeded = False
        """Set once the process waits for the request. Before that it is still starting."""

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Request an orderly end; the first reason stays. Call it from the loop's thread only."""
        self.reason = self.reason or reason
        self._event.set()

    async def wait(self) -> None:
        self.is_heeded = True
        await self._event.wait()

    async def sleep(self, delay_s: float) -> bool:
        """Wait for the delay or for the stop request, whichever is first.

        Return True when a stop is requested.
        """
        self.is_heeded = True
        await wait_at_most(self._event, delay_s)
        return self.requested


async def wait_at_most(event: asyncio.Event, limit_s: float) -> None:
    """Wait for the event or the limit, whichever is first.

    ``asyncio.wait_for`` loses a cancel that comes together with the event: a loop around it would
    never end.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


def run_service(
    main: Callable[[Stop], Awaitable[None]], *, stop_deadline_s: float = STOP_DEADLINE_S
) -> int:
    """Run `main` until it returns. Return the exit code for the process.

    The first SIGTERM or SIGINT requests an orderly end. The second one, or the deadline, cancels
    `main`. While `main` is still starting, the first one does.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = spec.name.removesuffix(".__main__") if spec is not None else ""
    if program.startswith("stele.") and sys.argv[1:]:
        return _explain(program, sys.argv[1:])
    share_arenas()
    collect_seldom()
    if not structlog.is_configured():  # until `main` has read its settings
        configure_logs(service="stele", instance=f"pid-{os.getpid()}")
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(_supervise(main, stop_deadline_s))
    except ConfigurationError as error:
        sys.stderr.write(f"{error.title}: {error}\n")
        code = EXIT_BAD_CONFIGURATION
    # A Kafka client that still waits for a broker has threads of its own. They use OpenSSL while
    # its exit handler frees it, and the process ended with SIGSEGV.
    if works_beside():
        atexit.register(_exit_now, code)
    return code


def _exit_now(code: int) -> None:
    """End the process without the exit handlers of C libraries."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _explain(program: str, arguments: Sequence[str]) -> int:
    """Print the usage of a service process that was started with arguments. It has none."""
    asked = {*arguments} <= {"-h", "--help"}
    usage = (
        f"usage: python -m {program}\n\n"
        "It takes no arguments. STELE_* environment variables configure it, all of which\n"
        "docs/reference/settings.md lists, and SIGTERM ends it. `stele --help` is the command line.\n"
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
    except OSError as error:
        if error.errno != errno.ENOSPC:
            log.exception("the service failed")
        else:
            log.error("no space left on the disk", path=error.filename, hint=FREE_SPACE)
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


# A folder that only one process may use at a time.


LOCK: Final = "lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder inside the block. Raises ConfigurationError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"STELE_DATA_DIR={folder} is in use by another process: end that one first"
            ) from error
        yield


# First step of every process: read its settings and set up its logs.


S = TypeVar("S", bound=ServiceSettings)


def started(service: str, kind: type[S]) -> S:
    """Return the settings of a process of this service. Raises ConfigurationError."""
    settings = load_settings(kind)
    configure_logs(
        service=service,
        instance=settings.called(),
        level=settings.log_level,
        json=settings.log_json,
    )
    for variable, meant in misspelt(kind, os.environ):
        log.warning("a variable is not read", variable=variable, hint=f"Is {meant} meant?")
    return settings
