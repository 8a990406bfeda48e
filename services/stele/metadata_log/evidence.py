"""Whether an empty log had a cluster before: then it is not founded anew (docs/decisions/006).

Cheap and sound, not complete: what is found proves an older cluster; finding nothing proves nothing. What
catch-up replicas hold is asked for in ``founding``.
"""

import asyncio
from typing import Final

from structlog.stdlib import BoundLogger

from stele.log.ends import Prober
from stele.log.flows import flow_topic
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.logs import get_logger

log: BoundLogger = get_logger(__name__)

GUARD_KEY: Final = "stele:{{{cluster}}}:guard"
"""Written by the session guard, for clusters alone; see its ``check.guard_key``."""
REDIS_TIMEOUT_S: Final = 2.0
TELLING_FLOWS: Final = ("orders", "placements")
"""Topics that are written for a founded cluster alone. Commands and outcomes come before, and acks may."""


async def older_cluster(settings: MetadataLogSettings) -> str:
    """What tells of an older cluster of this name, in words; empty when nothing does.

    Raises TimeoutError when the brokers do not answer.
    """
    return await _in_redis(settings) or await asyncio.to_thread(_in_topics, settings)


async def _in_redis(settings: MetadataLogSettings) -> str:
    """A Redis that is away is no reason to wait: its keys expire, and the topics are asked too."""
    # A fifth of what a start costs, and most starts find a log that is not empty.
    from redis.asyncio import Redis  # noqa: PLC0415
    from redis.exceptions import RedisError  # noqa: PLC0415

    key = GUARD_KEY.format(cluster=settings.cluster)
    redis = Redis.from_url(
        settings.redis_url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
    )
    try:
        known = await redis.hget(key, "cluster_id")
    except (RedisError, OSError) as error:
        log.warning("Redis was not asked for an older cluster", why=repr(error))
        return ""
    finally:
        await redis.aclose()
    name = known.decode(errors="replace") if isinstance(known, bytes) else known
    return f"the Redis key {key} is of cluster {name}" if name else ""


def _in_topics(settings: MetadataLogSettings) -> str:
    prober = Prober(settings.brokers)
    try:
        for flow in TELLING_FLOWS:
            topic = flow_topic(settings.cluster, flow)
            if prober.end(topic) > 0:
                return f"topic {topic} has held records"
    finally:
        prober.close()
    return ""
