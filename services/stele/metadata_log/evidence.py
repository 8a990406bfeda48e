"""Evidence that an empty log belonged to a cluster, which prevents founding (docs/decisions/006).

The check is cheap and sound, but not complete. Evidence proves an older cluster; its absence proves
none. ``founding`` asks the catch-up replicas.
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
"""Key that the session-guard writes only for a founded cluster; see ``check.guard_key``."""
REDIS_TIMEOUT_S: Final = 2.0
TELLING_FLOWS: Final = ("orders", "placements")
"""Topics that are written only for a founded cluster.

Commands, outcomes and perhaps acks come earlier.
"""


async def older_cluster(settings: MetadataLogSettings) -> str:
    """Return evidence of an older cluster of this name, as text; empty when there is none.

    Raises TimeoutError when the brokers do not answer.
    """
    return await _in_redis(settings) or await asyncio.to_thread(_in_topics, settings)


async def _in_redis(settings: MetadataLogSettings) -> str:
    """Look for the guard's key.

    An unavailable Redis does not block: keys expire, and the topics are checked too.
    """
    # Importing it takes a fifth of a start, and most starts find a log that is not empty.
    from redis.exceptions import RedisError  # noqa: PLC0415

    from stele.runtime.redis import connect_redis  # noqa: PLC0415

    key = GUARD_KEY.format(cluster=settings.cluster)
    redis = connect_redis(settings, REDIS_TIMEOUT_S)
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
