"""Keeps a router current from the log itself, as nodes do.

This has the least delay and needs no service.

If the topic was truncated, reading starts with a snapshot of a catch-up replica. If the log was
recovered, reading starts again. A new image counts only after the log was read to its end. Until
then the former image counts.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.log.port import Ends, Log
from stele.router.router import READY_S, Router, kept_current, listed
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import begin

__all__ = ["kafka_router"]

RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 30.0
"""Longest pause between attempts, in seconds.

Each attempt reads the log, so pauses grow until one reaches its end.
"""
END_S: Final = 15.0
"""Limit of one wait for the log's end, in seconds.

A long log takes several, and each reports the progress.

A look at the broker takes at most 10 s.
"""
TROUBLE_EVERY_S: Final = 1.0
"""Interval for checking whether the reader has a problem, in seconds."""


@asynccontextmanager
async def kafka_router(
    brokers: Brokers,
    cluster: str,
    catch_up_urls: str | Sequence[str] = (),
    ready_s: float = READY_S,
) -> AsyncIterator[Router]:
    """Run a router that reads the log of ``cluster`` inside the block.

    ``catch_up_urls`` has the form of ``urls`` in ``http_router``. Raises NotReady when the log was
    not read to its end within ``ready_s`` seconds.
    """
    urls = listed(catch_up_urls)
    reads = log_router(
        lambda: KafkaLog(brokers, flow_topic(cluster, "epochs")),
        lambda: CatchUp(urls),
        cluster,
        ready_s,
    )
    async with reads as router:
        yield router


@asynccontextmanager
async def log_router(
    open_log: Callable[[], Log],
    open_catch_up: Callable[[], CatchUp],
    cluster: str,
    ready_s: float = READY_S,
    supported: Set[str] = KNOWN_FEATURES,
) -> AsyncIterator[Router]:
    """Like ``kafka_router``, with other means to open the log and the catch-up replicas.

    They are opened and closed each time that reading starts again. ``supported`` are the features
    that the reader has.
    """
    router = Router()
    following = _follow(router, open_log, open_catch_up, cluster, supported)
    async with kept_current(router, following, ready_s):
        yield router


async def _follow(
    router: Router,
    open_log: Callable[[], Log],
    open_catch_up: Callable[[], CatchUp],
    cluster: str,
    supported: Set[str],
) -> None:
    """Read the log until cancelled.

    An error becomes the router's ``trouble``, and reading starts again.
    """
    pause_s, router.trouble = RETRY_S, "the log is being read"
    while True:
        try:
            async with AsyncExitStack() as opened:
                catch_up = open_catch_up()
                opened.push_async_callback(catch_up.close)
                epochs = open_log()
                opened.push_async_callback(epochs.close)
                ends = partial(_ends, router, epochs)
                start, _ = await begin(catch_up, cluster, ends, None, decided=False)
                follower = LogFollower(epochs, start, supported=supported)
                opened.callback(follower.stop)
                follower.start()
                await _read_to_the_end(router, follower)
                pause_s = RETRY_S
                await _go_on(router, follower)
        except Exception as error:  # look-ups continue with the known image
            router.trouble = str(error) or repr(error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_RETRY_S)


async def _ends(router: Router, epochs: Log) -> Ends:
    try:
        return await epochs.ends()
    except TimeoutError as error:
        router.trouble = str(error) or repr(error)
        raise


async def _read_to_the_end(router: Router, follower: LogFollower) -> None:
    """Wait until the log was read to its end, however long that takes.

    The router keeps its image until then, because everything before the end is the past. Raises the
    reader's failure.
    """
    while True:
        try:
            await follower.wait_for_end(END_S)
            return
        except (TimeoutError, KafkaException) as error:
            if follower.failure is not None:
                raise follower.failure from error
            at = f"the log is being read, and is at epoch {follower.image.epoch}"
            router.trouble = f"{at}: {error}" if str(error) else at
        await asyncio.sleep(RETRY_S)


async def _go_on(router: Router, follower: LogFollower) -> None:
    """Pass each new image to the router. Raises the reader's failure."""

    def take(image: Image) -> None:
        if not router.refuses(image):
            router.take(image)

    take(follower.image)
    follower.listen(lambda image, _: take(image))
    while follower.failure is None:
        router.trouble = router.refuses(follower.image) or follower.trouble
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TROUBLE_EVERY_S):
                await follower.failed.wait()
    raise follower.failure
