"""The waits of one call of the coordinator's rules."""

from stele.coordinator.model import Steps
from stele.domain.topology.barriers import Blocker


def waiting_for(steps: Steps) -> str:
    """Return the first wait in words; "requests" if there is nothing to do."""
    return steps.waits[0].what if steps.waits else "requests"


def blockers(steps: Steps) -> tuple[Blocker, ...]:
    return tuple(dict.fromkeys(b for wait in steps.waits for b in wait.blockers))
