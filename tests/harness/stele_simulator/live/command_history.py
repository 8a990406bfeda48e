"""I2: commands are linearizable. The order is that of the log's epochs, and callers' observations must fit.

The check is linear because the order is known. The epoch of an answer must come after every epoch that any
caller knew before the request, and must contain exactly the requested command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from stele.domain.commands import Envelope, Outcome, Rejection
from stele.domain.decide import decide
from stele.domain.facts import Epoch
from stele.domain.image import ZERO_STATE, Image
from stele.domain.model.requests import CommandRefused
from stele_simulator.restriction_checks import check_not_taken
from stele_simulator.violation import require

if TYPE_CHECKING:
    from stele_simulator.live.checks import LogRead


class Asked(msgspec.Struct, frozen=True):
    """A request, with the newest epoch that any caller knew when it was sent."""

    envelope: Envelope
    floor: int


class CommandHistory:
    """Every command that was sent, every epoch that won, every answer that was received.

    Services and nodes send commands too, which are not among ``envelopes``.
    """

    def __init__(self, log: LogRead, envelopes: Iterable[Envelope]) -> None:
        self.told = 0
        self.rejected = 0
        self.barriers = 0
        self.barrier_reads = 0
        self.floor = 0
        """The newest epoch that any caller knows."""
        self._log = log
        self._envelopes = {envelope.request_id: envelope for envelope in envelopes}
        self._asked: dict[str, Asked] = {}
        self._epoch_of: dict[str, int] = {}
        """Request id -> the epoch that decided it."""
        self._refusals: dict[str, str] = {}

    def asks(self, envelope: Envelope) -> None:
        """A caller sends a command. It repeats the command under the same id until it is answered."""
        self._asked[envelope.request_id] = Asked(envelope, self.floor)

    def won(self, before: Image, epoch: Epoch) -> None:
        """Check that an epoch is what its command decides on the state before it, and happens once."""
        for fact in epoch.facts:
            if isinstance(fact, CommandRefused):
                self._decided_once(fact.request_id, epoch.epoch)
                self._refusals[fact.request_id] = fact.code
        if not epoch.request_id:
            return
        self._decided_once(epoch.request_id, epoch.epoch)
        envelope = self._envelopes.get(epoch.request_id)
        if envelope is None:
            return
        self._check_term(before, envelope, epoch)
        decision = decide(before, envelope, epoch.at_ms)
        require(
            decision == epoch.facts,
            "I2",
            f"epoch {epoch.epoch} holds what {epoch.command} decides on epoch {before.epoch}",
            f"on that state it decides {str(decision)[:300]}",
        )

    def _decided_once(self, request_id: str, epoch: int) -> None:
        earlier = self._epoch_of.setdefault(request_id, epoch)
        require(
            earlier == epoch,
            "I2",
            f"request {request_id} is decided once",
            f"it was decided at epoch {earlier} and again at epoch {epoch}",
        )

    @staticmethod
    def _check_term(before: Image, envelope: Envelope, epoch: Epoch) -> None:
        term = getattr(envelope.command, "term", None)
        if term is None or epoch.command == "claim_coordinator":
            return
        current = before.topology.coordinator.term
        require(
            term == current,
            "I2",
            f"epoch {epoch.epoch} comes from the coordinator of term {current}",
            f"it is a command of term {term}",
        )

    def answered(self, envelope: Envelope, outcome: Outcome) -> None:
        """Check that an answer is true, and newer than all that was known when its command was sent."""
        asked = self._asked[envelope.request_id]
        self.told += 1
        if not outcome.taken:
            code = "" if outcome.rejection is None else outcome.rejection.code
            images, epoch = self._log.images, outcome.epoch
            check_not_taken(images[epoch] if epoch < len(images) else None, code, epoch)
            return
        if outcome.applied:
            self._check_applied(asked, outcome)
        else:
            self.rejected += 1
            self._check_rejected(asked, outcome)
        self.floor = max(self.floor, outcome.epoch)

    def _check_applied(self, asked: Asked, outcome: Outcome) -> None:
        request_id = asked.envelope.request_id
        epochs = self._log.epochs
        there = 0 < outcome.epoch <= len(epochs)
        found = epochs[outcome.epoch - 1].request_id if there else "nothing durable"
        require(
            found == request_id,
            "I2",
            f"request {request_id} became epoch {outcome.epoch}, as its caller was told",
            f"that epoch is {found}",
        )
        require(
            outcome.epoch > asked.floor,
            "I2",
            f"an answer lies after epoch {asked.floor}, which was known before the question",
            f"request {request_id} was told epoch {outcome.epoch}",
        )
        state_id = self._log.images[outcome.epoch].state_id
        require(
            outcome.state_id in (state_id, ZERO_STATE),
            "I2",
            f"the state id of epoch {outcome.epoch}",
            f"{outcome.state_id.hex()}",
        )

    def _check_rejected(self, asked: Asked, outcome: Outcome) -> None:
        request_id, rejection = asked.envelope.request_id, outcome.rejection
        assert rejection is not None
        there = outcome.epoch < len(self._log.images)
        require(
            there and outcome.epoch > asked.floor,
            "I2",
            f"a rejection lies after epoch {asked.floor}, which was known before the question",
            f"request {request_id} was rejected at epoch {outcome.epoch}",
        )
        require(
            self._epoch_of.get(request_id) == outcome.epoch
            and self._refusals.get(request_id) == rejection.code,
            "I2",
            f"request {request_id} was told that epoch {outcome.epoch} refuses it: {rejection.code}",
            f"the log decided it at epoch {self._epoch_of.get(request_id)}",
        )
        decision = decide(self._log.images[outcome.epoch - 1], asked.envelope, 0)
        require(
            isinstance(decision, Rejection) and decision.code == rejection.code,
            "I2",
            f"request {request_id} is rejected at epoch {outcome.epoch} for {rejection.code}",
            f"on the state before it decides {str(decision)[:200]}",
        )

    def barrier_answered(self, durable_before: int, epoch: int) -> None:
        """Check that a linearizable read sees whatever was durable before it was sent."""
        self.barriers += 1
        self.floor = max(self.floor, epoch)
        require(
            epoch > durable_before,
            "I2",
            f"a barrier asked for after epoch {durable_before} became durable shows that epoch",
            f"it was answered at epoch {epoch}",
        )

    def barrier_read_answered(self, known_before: int, epoch: int) -> None:
        """Check a read at level barrier, which adds no record: it shows what was known before it was sent."""
        self.barrier_reads += 1
        self.floor = max(self.floor, epoch)
        require(
            epoch >= known_before,
            "I2",
            f"a read at level barrier shows epoch {known_before}, which was known before it was asked for",
            f"it was answered at epoch {epoch}",
        )
