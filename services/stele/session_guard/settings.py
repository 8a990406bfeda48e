"""Settings of the session guard."""

from pydantic import Field

from stele.runtime.settings import ServiceSettings


class SessionGuardSettings(ServiceSettings):
    """The common settings, and how fresh Redis is kept."""

    redis_timeout_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="A call to Redis is given up after this time; seconds.",
    )
    refresh_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Redis is written at each epoch, and at least this often; seconds.",
    )
    guard_ttl_s: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="What is in Redis counts for this time after the moment for which it was proven "
        "current, so it bounds how long a stale permission is shown; seconds, several times the refresh.",
    )
    proof_max_age_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="A check over HTTP permits only when the log's end was asked at most this long ago "
        "and reached; seconds.",
    )
    redis_cluster: bool = Field(
        default=False, description="Whether STELE_REDIS_URL names a member of a Redis Cluster."
    )
