"""The coordinator's metrics."""

from prometheus_client import Counter, Gauge, Histogram

from stele.domain.evolve import Delta
from stele.domain.model.transitions import BarrierRelaxed
from stele.runtime.metrics import REGISTRY

steps = Counter(
    "stele_coordinator_steps",
    "Changes of the topology's version that were seen, by the state that was entered.",
    ["transition_state"],
    registry=REGISTRY,
)
step_seconds = Histogram(
    "stele_coordinator_step_seconds",
    "Time from entering a state to the next one; seconds.",
    ["transition_state"],
    # A step without data takes a few round trips, streaming takes hours.
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200),
    registry=REGISTRY,
)
relaxed = Counter(
    "stele_coordinator_barriers_relaxed",
    "Barriers that were relaxed, by the level that they went down to.",
    ["level"],
    registry=REGISTRY,
)
term = Gauge("stele_coordinator_term", "The term in the log.", registry=REGISTRY)
active = Gauge(
    "stele_coordinator_active", "1 when this instance drives the topology.", registry=REGISTRY
)
sent = Counter(
    "stele_coordinator_sent", "Commands and orders sent, by kind.", ["kind"], registry=REGISTRY
)
unreadable = Counter(
    "stele_coordinator_unreadable",
    "Acks and reports that could not be decoded and were left out.",
    registry=REGISTRY,
)


def relaxations(delta: Delta) -> list[BarrierRelaxed]:
    """The barriers that an epoch has relaxed, each counted."""
    found = [fact for fact in delta.facts() if isinstance(fact, BarrierRelaxed)]
    for fact in found:
        relaxed.labels(fact.level).inc()
    return found
