"""From threads, where clients of Kafka and disks wait, back into the event loop."""

import asyncio
import contextlib
from collections.abc import Callable


def call_in(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> None:
    """Have the loop call it in a turn of its own. Once it has closed nobody is there to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
