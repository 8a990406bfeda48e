"""Pass calls and results from threads, where Kafka clients and disks block, to the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")


def call_in(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> None:
    """Call ``callback`` in the loop, from any thread. Does nothing once the loop has closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


_UNFINISHED: Final = set[asyncio.Future[Any]]()
"""Work of ``beside`` whose thread still runs."""


def works_beside() -> bool:
    """Return whether a thread of ``beside`` still runs. It may hold a Kafka client."""
    return bool(_UNFINISHED)


def beside(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run ``work`` in a daemon thread; return a future with its result.

    The end of the process does not wait for the thread, because calls to brokers cannot be
    cancelled.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(found: T) -> None:
        if not done.done():  # the caller may have cancelled it
            done.set_result(found)

    def fail(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        try:
            found = work()
        except Exception as error:
            call_in(loop, fail, error)
        else:
            call_in(loop, finish, found)
        finally:
            _UNFINISHED.discard(done)

    _UNFINISHED.add(done)
    threading.Thread(target=run, name=name, daemon=True).start()
    return done
