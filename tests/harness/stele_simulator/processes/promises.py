"""Outcomes that clients received: one for each request, and it stays in the history."""

from typing import TYPE_CHECKING, Final, NamedTuple

from stele.domain.commands import Outcome
from stele.log.codec import decode_epoch
from stele_simulator.kernel import us
from stele_simulator.processes.recoveries import HOLDS, NOTICED_S

if TYPE_CHECKING:
    from stele_simulator.processes.witness import Witness
    from stele_simulator.processes.world import World

ONE_OUTCOME: Final = "I2"


class Promise(NamedTuple):
    """An outcome that a client received."""

    outcome: Outcome
    at_us: int


class PromiseWitness:
    """Records each outcome that a client receives."""

    def __init__(self, world: "World") -> None:
        self.told: dict[str, Promise] = {}
        """By request."""
        self.excused: set[str] = set()
        """Requests whose outcome no reachable process had."""
        self._world = world

    @property
    def _witness(self) -> "Witness":
        return self._world.witness

    def tells(self, outcome: Outcome) -> None:
        """A client has its answer."""
        before, line = self.told.get(outcome.request_id), self._witness.line(self._witness.head)
        if before is not None and {before.outcome.state_id, outcome.state_id} <= line.keys():
            self._witness.checks += 1
            same = (before.outcome.applied, before.outcome.epoch)
            self._world.demand(
                same == (outcome.applied, outcome.epoch),
                ONE_OUTCOME,
                f"request {outcome.request_id} has one outcome, {same}",
                f"({outcome.applied}, {outcome.epoch}) is told later",
            )
        self.told[outcome.request_id] = Promise(outcome, self._world.kernel.now_us)
        if outcome.state_id in line:
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

    def newest(self) -> int:
        """Return the newest epoch of the present log that any client knows."""
        line = self._witness.line(self._witness.head)
        return max((line.get(p.outcome.state_id, 0) for p in self.told.values()), default=0)

    def check(self) -> None:
        """Check that the final history has the outcomes that clients received, except those that no process
        had.
        """
        winners, line = self._witness.winners(), self._witness.line(self._witness.head)
        applied: dict[str, int] = {}
        for number, known in sorted(winners.items()):
            epoch = decode_epoch(known.value)
            if epoch.request_id:
                self._witness.checks += 1
                self._world.demand(
                    epoch.request_id not in applied,
                    ONE_OUTCOME,
                    f"request {epoch.request_id} is applied once, in epoch"
                    f" {applied.get(epoch.request_id)}",
                    f"it is in epoch {number} too",
                )
                applied[epoch.request_id] = number
        for request_id, promise in self.told.items():
            outcome = promise.outcome
            if outcome.state_id not in line:
                self._world.demand(
                    request_id in self.excused
                    or outcome.state_id in self._witness.recoveries.forgotten
                    or self._witness.recoveries.gave_up(outcome.state_id, line.keys())
                    or self._witness.recoveries.was_passed_over(outcome.state_id),
                    HOLDS,
                    f"the outcome of request {request_id}, told as epoch {outcome.epoch}, is in the"
                    " history at the end",
                    "it is not, and no recovery lost it",
                )
                continue
            self._witness.checks += 1
            told = outcome.epoch if outcome.applied else None
            rewritten = applied.get(request_id) != told and (
                not outcome.applied or applied.get(request_id) is not None
            )
            self._world.demand(
                not rewritten,
                ONE_OUTCOME,
                f"request {request_id} was {'applied' if outcome.applied else 'refused'} in epoch"
                f" {outcome.epoch}, as its client was told",
                f"it is applied in epoch {applied.get(request_id)}",
            )
