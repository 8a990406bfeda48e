"""Keeping a router current from the log itself, as nodes do: the newest of all ways, and it needs no service.

Where the topic was truncated it begins with a catch-up replica's snapshot; when the log was recovered, it
begins anew.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from typing import Final

from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.brokers import Brokers
from stele.log.errors import LogError
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.log.port import EpochsLog
from stele.router.router import READY_S, Router, kept_current, listed
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import begin

RETRY_S: Final = 1.0


@asynccontextmanager
async def kafka_router(
    brokers: Brokers,
    cluster: str,
    catch_up_urls: str | Sequence[str] = (),
    ready_s: float = READY_S,
) -> AsyncIterator[Router]:
    """A router that reads the log of ``cluster`` inside the block; ``catch_up_urls`` as for ``http_router``.

    Raises NotReady when nothing was read within ``ready_s`` seconds.
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
    open_log: Callable[[], EpochsLog],
    open_catch_up: Callable[[], CatchUp],
    cluster: str,
    ready_s: float = READY_S,
    supported: Set[str] = KNOWN_FEATURES,
) -> AsyncIterator[Router]:
    """As ``kafka_router``, by other ways to the log and to its replicas, which are opened, and closed, as often
    as reading begins anew. ``supported`` are the features that it can read.
    """
    router = Router()
    following = _follow(router, open_log, open_catch_up, cluster, supported)
    async with kept_current(router, following, ready_s):
        yield router


async def _follow(
    router: Router,
    open_log: Callable[[], EpochsLog],
    open_catch_up: Callable[[], CatchUp],
    cluster: str,
    supported: Set[str],
) -> None:
    while True:
        catch_up, epochs = open_catch_up(), open_log()
        try:
            start, _ = await begin(catch_up, cluster, epochs.ends, None, decided=False)
            follower = LogFollower(epochs, start, supported=supported)
            follower.listen(lambda image, _: router.take(image))
            follower.start()
            await follower.wait_for_end()
            router.take(follower.image)
            router.trouble = ""
            await follower.failed.wait()
            router.trouble = str(follower.failure)
        except (TimeoutError, LogError, UnreadableSnapshotError) as error:
            router.trouble = str(error) or repr(error)
        finally:
            await epochs.close()
            await catch_up.close()
        await asyncio.sleep(RETRY_S)
