"""Connect to Redis: one server, the primary that Sentinels name, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import Sentinel

from stele.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from stele.runtime.settings import ServiceSettings

SENTINEL_PORT: Final = 26379
_SENTINEL_SCHEMES: Final = {"redis+sentinel": False, "rediss+sentinel": True}
"""By scheme: True if servers and Sentinels are reached by TLS."""
_HOW_TO_WRITE: Final = "Write redis://host:6379/0, rediss:// for TLS, or redis+sentinel://host:26379,host:26379/service."


class SentinelUrl(NamedTuple):
    """The parts of ``redis+sentinel://user:password@host:port,host:port/service/database``."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    username: str | None
    """The user and the password are those of the servers. Sentinels are queried without."""
    password: str | None
    tls: bool


def connect_redis(settings: ServiceSettings, timeout_s: float) -> Redis | RedisCluster:
    """Return a client; it connects with the first call. Raises ConfigurationError for a malformed URL."""
    url = settings.redis_url
    limits: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    try:
        scheme = urlsplit(url).scheme
        if scheme not in _SENTINEL_SCHEMES:
            kind = RedisCluster if settings.redis_cluster else Redis
            client: Redis | RedisCluster = kind.from_url(url, **limits)
            return client
        if settings.redis_cluster:
            raise ValueError(
                "Sentinels do not watch a Redis Cluster: leave STELE_REDIS_CLUSTER out"
            )
        parts = parse_sentinel_url(url)
    except ValueError as error:
        raise ConfigurationError(f"STELE_REDIS_URL: {error}. {_HOW_TO_WRITE}") from error
    common = {**limits, "ssl": True} if parts.tls else limits
    sentinel = Sentinel(parts.sentinels, sentinel_kwargs=common, **common)  # type: ignore[no-untyped-call]
    primary: Redis = sentinel.master_for(
        parts.service, db=parts.database, username=parts.username, password=parts.password
    )
    return primary


def parse_sentinel_url(url: str) -> SentinelUrl:
    """Parse the URL. Raises ValueError without the URL, which may hold a password."""
    split = urlsplit(url)
    credentials, at, places = split.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    service, _, database = split.path.strip("/").partition("/")
    if not service:
        raise ValueError("the name of the service that the Sentinels watch is missing")
    if not (database or "0").isdigit():
        raise ValueError("the database behind the name of the service is not a number")
    return SentinelUrl(
        sentinels=tuple(_place(split, part) for part in places.split(",")),
        service=unquote(service),
        database=int(database or "0"),
        username=unquote(username) or None,
        password=unquote(password) if at and password else None,
        tls=_SENTINEL_SCHEMES[split.scheme],
    )


def _place(split: SplitResult, text: str) -> tuple[str, int]:
    """Return the host and port of one Sentinel."""
    one = split._replace(netloc=text.strip())
    if not one.hostname:
        raise ValueError("a Sentinel is not host:port")
    return one.hostname, one.port or SENTINEL_PORT
