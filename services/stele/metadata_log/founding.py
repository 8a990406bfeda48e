"""Founding: its command, and the reasons to refuse it.

An empty topic alone does not mean a new cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from structlog.stdlib import BoundLogger

from stele.domain.commands import Envelope, FoundCluster, Outcome, Rejection
from stele.domain.image import ZERO_STATE, Image
from stele.domain.model.requests import named
from stele.domain.not_taken import OLDER_CLUSTER, OTHER_LOG
from stele.log.ends import Prober
from stele.log.flows import flow_topic
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.catch_up import CatchUp
from stele.runtime.logs import get_logger

WHAT_TO_DO: Final = (
    "`stele recover` continues from a catch-up replica; or look for the right topic, or restore it."
    " For a new cluster use another name, or delete the rest of the old one."
)

OlderCluster = Callable[[MetadataLogSettings], Awaitable[str]]
"""Returns evidence of an older cluster as text; see ``older_cluster``."""


async def nothing_older(_: MetadataLogSettings) -> str:
    return ""


async def older_in_replicas(catch_up: CatchUp, cluster: str) -> str:
    """Return evidence that a replica holds epochs of this cluster, as text.

    It may have appeared since this process started, as a restored folder. Replicas that do not
    answer, and those of another cluster, do not block founding.
    """
    held = [
        (answer.log_id, answer.epoch, answer.replica_id, url)
        for url, answer in await catch_up.archives()
        if answer.epoch and answer.cluster in ("", cluster)
    ]
    if not held:
        return ""
    log_id, epoch, replica_id, url = max(held)
    return f"catch-up replica {replica_id} ({url}) holds epoch {epoch} of log {log_id}"


def founding(settings: MetadataLogSettings) -> Envelope:
    """Return the founding command.

    All instances use one request id, so the cluster is created once.
    """
    return Envelope(
        request_id=named(f"found-{settings.cluster}"),
        command=FoundCluster(),
        actor=settings.instance_id,
        reason="The log was empty, and STELE_FOUND is auto.",
        origin="metadata-log",
    )


def refused_for(envelope: Envelope, older: str) -> Outcome:
    rejection = Rejection(
        OLDER_CLUSTER,
        f"The log is empty, but {older}: this may be a lost log and no new cluster. Nothing was decided.",
        WHAT_TO_DO,
        {"evidence": older},
    )
    return Outcome(
        request_id=envelope.request_id,
        applied=False,
        epoch=0,
        state_id=ZERO_STATE,
        rejection=rejection,
        taken=False,
    )


def meant_for_another(envelope: Envelope, image: Image) -> Rejection | None:
    """Return a rejection when the command names another log, else None."""
    if envelope.log_id in ("", image.log_id.hex()):
        return None
    return Rejection(
        OTHER_LOG,
        f"The command is meant for log {envelope.log_id[:64]}; this is {image.log_id.hex()}."
        " Nothing was decided.",
        "Look at the cluster's state, and send a new command if it is still wanted.",
    )


# Evidence that an empty log belonged to a cluster, which prevents founding (docs/decisions/006).
#
# The check is cheap and sound, but not complete. Evidence proves an older cluster; its absence proves
# none. ``older_in_replicas`` asks the catch-up replicas.


log: BoundLogger = get_logger(__name__)

GUARD_KEY: Final = "stele:{{{cluster}}}:guard"
"""Key that the session-guard writes only for a founded cluster; see
``session_guard.check.guard_key``."""
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
