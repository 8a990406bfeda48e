"""Settings of the session guard."""

from typing import Annotated

from msgspec import Meta

from stele.runtime.settings import ServiceSettings


class SessionGuardSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, and how fresh Redis is kept."""

    redis_timeout_s: Annotated[
        float,
        Meta(gt=0, le=60, description="A call to Redis is given up after this time; seconds."),
    ] = 2.0
    refresh_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Redis is written at each epoch, and at least this often; seconds.",
        ),
    ] = 1.0
    guard_ttl_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="What is in Redis counts for this time after the moment for which it was proven "
            "current, so it bounds how long a stale permission is shown; seconds, several times the refresh.",
        ),
    ] = 5.0
    proof_max_age_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="A check over HTTP permits only when the log's end was asked at most this long ago "
            "and reached; seconds.",
        ),
    ] = 2.0
