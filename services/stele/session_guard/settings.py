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
        default=10.0,
        gt=0,
        le=600,
        description="What is in Redis expires after this time without a write, so that checks "
        "fail closed when no guard runs; seconds, several times the refresh.",
    )
