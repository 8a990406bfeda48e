"""The session guard's metrics."""

from prometheus_client import Counter, Gauge

from stele.runtime.metrics import REGISTRY

acks = Counter("stele_session_guard_acks", "Acks that were read.", registry=REGISTRY)
unreadable = Counter(
    "stele_session_guard_unreadable",
    "Acks that could not be decoded and were left out.",
    registry=REGISTRY,
)
blockers = Gauge(
    "stele_session_guard_blockers", "Nodes that the newest step waits for.", registry=REGISTRY
)
nodes = Gauge(
    "stele_session_guard_nodes",
    "Nodes by liveness: up, down, unknown.",
    ["liveness"],
    registry=REGISTRY,
)
redis_writes = Counter(
    "stele_session_guard_redis_writes",
    "Answers of Redis: written, proved_already, overtaken, vacant, too_late; and failed.",
    ["result"],
    registry=REGISTRY,
)
redis_up = Gauge(
    "stele_session_guard_redis_up", "1 while Redis takes what is written.", registry=REGISTRY
)
