"""The client's library: which replicas a key has, in memory, kept current from the cluster's log.

    async with http_router(["http://127.0.0.1:8080"]) as router:
        replicas = router.lookup("library", b"book.txt")

It needs neither Spark nor any of the services' servers. ``docs/router.md`` tells how it is used, and what the
store at the other end has to check.
"""

from stele.router.errors import (
    NotReady,
    RouterStopped,
    RoutingError,
    StaleRoute,
    StaleTooLong,
    Unavailable,
    UnknownName,
)
from stele.router.over_http import http_router
from stele.router.quorums import read_quorum, write_quorum
from stele.router.router import Attempt, Router
from stele.router.routes import Place, Replicas

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
