"""Outcomes that clients received: they stay in the history, unless no process had them.

``EpochWitness`` checks that an outcome is in the record that it names. ``RequestChecks`` checks that a history
decides a request once.
"""

from typing import TYPE_CHECKING

from stele.domain.commands import Outcome
from stele_simulator.kernel import us
from stele_simulator.processes.recoveries import HOLDS, NOTICED_S

if TYPE_CHECKING:
    from stele_simulator.processes.witness import Witness
    from stele_simulator.processes.world import World


class PromiseWitness:
    """Records each outcome that a client receives."""

    def __init__(self, world: "World", witness: "Witness") -> None:
        self.told: dict[str, Outcome] = {}
        """By request."""
        self.excused: set[str] = set()
        """Requests whose outcome no reachable process had."""
        self._world = world
        self._witness = witness

    def tells(self, outcome: Outcome) -> None:
        """Note that a client has its answer."""
        self.told[outcome.request_id] = outcome
        if outcome.state_id in self._witness.line(self._witness.head):
            self.excused.discard(outcome.request_id)
        elif self._is_just_given_up(outcome.state_id):
            self.excused.add(outcome.request_id)

    def _is_just_given_up(self, state_id: bytes) -> bool:
        """Return whether a recovery, possibly by force, lost the outcome while it was on its way to the
        client.
        """
        recoveries = self._witness.recoveries
        now_us, topic = self._world.kernel.now_us, self._world.topic
        is_newest = recoveries.newest_us >= topic.faulted_us and bool(recoveries.first_states)
        log_id = self._witness.log_of(state_id)
        return (
            is_newest
            and now_us - recoveries.newest_us <= us(NOTICED_S)
            and log_id < self._witness.log_of(recoveries.first_states[-1])
        )

    def check(self) -> None:
        """Check that the final history has the outcomes that clients received, except those that no process
        had.
        """
        line, recoveries = self._witness.line(self._witness.head), self._witness.recoveries
        for request_id, outcome in self.told.items():
            self._world.demand(
                outcome.state_id in line
                or request_id in self.excused
                or outcome.state_id in recoveries.forgotten
                or recoveries.gave_up(outcome.state_id, line.keys())
                or recoveries.was_passed_over(outcome.state_id),
                HOLDS,
                f"the outcome of request {request_id}, told as epoch {outcome.epoch}, is in the history at"
                " the end",
                "it is not, and no recovery lost it",
            )
