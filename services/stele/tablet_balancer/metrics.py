"""What the balancer counts."""

from typing import Final

from prometheus_client import Counter, Histogram

from stele.runtime.metrics import REGISTRY

moves: Final = Counter(
    "stele_balancer_moves", "Moves of tablets that were asked for and taken.", registry=REGISTRY
)
repairs: Final = Counter(
    "stele_balancer_repairs",
    "Repairs of tablets that were asked for and taken.",
    registry=REGISTRY,
)
refused: Final = Counter(
    "stele_balancer_refused",
    "Rejected requests, by code.",
    ["code"],
    registry=REGISTRY,
)
loads: Final = Counter(
    "stele_balancer_loads", "Reports of nodes' loads that were read.", registry=REGISTRY
)
unreadable: Final = Counter(
    "stele_balancer_unreadable", "Records that were left out.", registry=REGISTRY
)
look_seconds: Final = Histogram(
    "stele_balancer_look_seconds", "Time that one plan took.", registry=REGISTRY
)
