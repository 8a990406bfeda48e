"""The client's library: the replicas of each key, in memory, kept current from the cluster's log.

    async with http_router(["http://127.0.0.1:8080"]) as router:
        replicas = router.lookup("library", b"book.txt")

It imports neither Spark nor the servers of the services. ``docs/guides/route_requests.md`` describes its use,
and the checks that a replica must make.
"""

from stele.router.over_http import http_router
from stele.router.router import (
    Attempt,
    NotReady,
    Place,
    Replicas,
    Router,
    RouterStopped,
    RoutingError,
    StaleRoute,
    StaleTooLong,
    Unavailable,
    UnknownName,
    read_quorum,
    write_quorum,
)

__all__ = [
    "Attempt",
    "NotReady",
    "Place",
    "Replicas",
    "Router",
    "RouterStopped",
    "RoutingError",
    "StaleRoute",
    "StaleTooLong",
    "Unavailable",
    "UnknownName",
    "http_router",
    "read_quorum",
    "write_quorum",
]
