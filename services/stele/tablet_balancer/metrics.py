"""What the balancer counts."""

from typing import Final

from prometheus_client import Counter, Histogram

moves: Final = Counter("stele_balancer_moves", "Moves of tablets that were asked for and taken.")
refused: Final = Counter(
    "stele_balancer_refused", "What was asked for and refused, by code.", ["code"]
)
unreadable: Final = Counter("stele_balancer_unreadable", "Records that were left out.")
look_seconds: Final = Histogram("stele_balancer_look_seconds", "Time that one plan took.")
