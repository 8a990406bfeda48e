"""Keeping a router current from the log itself, as nodes do: the newest of all ways, and it needs no service.

Where the topic was truncated it begins with a catch-up replica's snapshot; when the log was recovered, it
begins anew.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from stele.log.brokers import Brokers
from stele.log.errors import LogError
from stele.log.flows import flow_topic
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.router.router import READY_S, Router, listed
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
    router = Router()
    following = asyncio.create_task(_follow(router, brokers, cluster, listed(catch_up_urls)))
    try:
        await router.wait_ready(ready_s)
        yield router
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        router.stop("The router was closed.")


async def _follow(router: Router, brokers: Brokers, cluster: str, urls: Sequence[str]) -> None:
    while True:
        catch_up = CatchUp(urls)
        kafka_log = KafkaLog(brokers, flow_topic(cluster, "epochs"))
        try:
            start, _ = await begin(catch_up, cluster, kafka_log.ends, None, decided=False)
            follower = LogFollower(kafka_log, start)
            follower.listen(lambda image, _: router.take(image))
            follower.start()
            await follower.wait_for_end()
            router.take(follower.image)
            router.trouble = ""
            await follower.failed.wait()
            router.trouble = str(follower.failure)
        except (TimeoutError, LogError) as error:
            router.trouble = str(error) or repr(error)
        finally:
            await kafka_log.close()
            await catch_up.close()
        await asyncio.sleep(RETRY_S)
