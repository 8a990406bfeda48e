"""From threads, where clients of Kafka and disks wait, back into the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_in(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> None:
    """Have the loop call it in a turn of its own. Once it has closed nobody is there to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def beside(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run it in a thread that the end of the process does not wait for: calls to brokers have no cancel."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(found: T) -> None:
        if not done.done():
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

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
