"""Changes of the state by each epoch along the topic's history, and the answers to callers. The rules are
those of images, and a lost log changes none of them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from stele.domain.commands import AlterSchema, Envelope, Outcome, Rejection, command_digest
from stele.domain.context import Decision
from stele.domain.decide import decide
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.requests import CommandRefused
from stele.domain.not_taken import EXPIRED
from stele.log.codec import decode_epoch
from stele_simulator.log_checks import LogChecks
from stele_simulator.part_checks import PartChecks, check_size, is_too_large
from stele_simulator.processes.releases import OLDER, UNKNOWN
from stele_simulator.request_checks import RequestChecks, checks_of
from stele_simulator.restriction_checks import check_not_taken, check_restricted
from stele_simulator.schema_checks import check_batch, check_schema
from stele_simulator.stream_checks import StreamChecks
from stele_simulator.switch_checks import check_switches
from stele_simulator.tablet_checks import check_tablets
from stele_simulator.violation import require

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

CLAIM: Final = "claim_coordinator"
DECIDED: Final = "I2"
TOO_LARGE: Final = "record_too_large"


class EpochWitness:
    """Records requests and checks their outcomes."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._asked: dict[tuple[str, bytes], dict[str, list[Envelope]]] = {}
        """By request id and digest, then by the log that they are meant for; empty for any. A retry may give
        another reason, which is not part of a command.
        """
        self._log = LogChecks()
        self._requests = self._checks_of(())
        self._parts = PartChecks()
        self.in_parts = 0
        self.too_large = 0
        """Commands that were refused since they have no room in a record."""
        self.streams = StreamChecks()
        self.by_version: dict[int, Image] = {}
        """The newest image of each version, of the history up to ``_followed``."""
        self._followed = b""

    def asks(self, envelope: Envelope) -> None:
        """Record that a process sends this command. Different commands may come under one id, and one of them
        is decided. The same command may be meant for another log.
        """
        key = envelope.request_id, command_digest(envelope.command)
        sent = self._asked.setdefault(key, {}).setdefault(envelope.log_id, [])
        if envelope not in sent:
            sent.append(envelope)

    def check(self, before: Image, after: Image, epoch: Epoch) -> None:
        """Check the winner between two states."""
        if self._followed != before.state_id:
            self._begin_anew(before)
        with self._world.checking():
            check_restricted(before, epoch)
            check_switches(before, after)
            check_schema(before, after)
            self._check_batch(before, after, epoch)
            self._log.check(before, after, self.by_version)
            if after.topology is before.topology:  # else the log's checks have
                check_tablets(before, after)
            self.streams.check(before, after)
            self._is_decided(before, epoch)
            self._requests.check(epoch)
            self._parts.check(before, after, epoch)
            size_bytes = len(self._world.witness.records[epoch.state_id].value)
            check_size(epoch, size_bytes, self._world.scenario.records.most_bytes)
        self._requests.follow(epoch)
        self._parts.follow(epoch)
        self._note(before, after)

    def _checks_of(self, line: Iterable[Epoch]) -> RequestChecks:
        memory = self._world.scenario.memory
        return checks_of(line, memory.size, memory.limit)

    def _begin_anew(self, image: Image) -> None:
        """Epochs were lost: what led to this state is another history than what was followed."""
        witness = self._world.witness
        self._log, self.by_version = LogChecks(), {}
        line = sorted(witness.line(image.state_id).items(), key=lambda each: each[1])
        epochs = [decode_epoch(witness.records[state_id].value) for state_id, _ in line]
        self._requests, self._parts = self._checks_of(epochs), PartChecks()
        for epoch in epochs:
            self._parts.follow(epoch)
        before = Image()
        for state_id, _ in line:
            after = witness.image_at(state_id)
            assert after is not None, "it was the newest once"
            self._note(before, after)
            before = after

    def _note(self, before: Image, after: Image) -> None:
        self._log.follow(before, after)
        self.streams.note(after)
        self.by_version[after.topology.version] = after
        self._followed = after.state_id

    def _is_decided(self, before: Image, epoch: Epoch) -> None:
        """I2: it holds what its command, meant for this log and of the current term, decides on the very state
        before it; so do refusals.
        """
        for fact in epoch.facts:
            if not isinstance(fact, CommandRefused):
                continue
            refused = self._sent(before, fact.request_id, fact.digest)
            known = OLDER.features if fact.code == UNKNOWN else None
            decision = (
                decide(before, refused[-1], epoch.at_ms, supported=known) if refused else None
            )
            require(
                decision is None or self._is_refused(decision, fact.code),
                DECIDED,
                f"request {fact.request_id} is rejected at epoch {epoch.epoch} for {fact.code}",
                f"on the state before it decides {str(decision)[:200]}",
            )
        sent = self._sent(before, epoch.request_id, epoch.command_digest)
        if not sent:
            return
        _check_term(before, sent[-1], epoch)
        decided = self._parts.decided(epoch)
        self.in_parts += len(decided) > len(epoch.facts)
        decisions = (decide(before, each, epoch.at_ms) for each in reversed(sent))
        decision = next(decisions)
        require(
            decision == decided or any(each == decided for each in decisions),
            DECIDED,
            f"epoch {epoch.epoch} holds what {epoch.command} decides on epoch {before.epoch}",
            f"on that state it decides {str(decision)[:300]}",
        )

    def _check_batch(self, before: Image, after: Image, epoch: Epoch) -> None:
        for sent in self._sent(before, epoch.request_id, epoch.command_digest)[-1:]:
            if isinstance(sent.command, AlterSchema):
                check_batch(sent.command, after)

    def _is_refused(self, decision: Decision, code: str) -> bool:
        """By what is decided; or since that has no room in a record."""
        if isinstance(decision, Rejection):
            return decision.code == code
        self.too_large += code == TOO_LARGE
        limit_bytes = self._world.scenario.records.most_bytes
        return code == TOO_LARGE and is_too_large(decision, limit_bytes)

    def _sent(self, before: Image, request_id: str, digest: bytes) -> list[Envelope]:
        """Return the command as it was first sent; None where only the founder sent it."""
        asked = self._asked.get((request_id, digest))
        if asked is None:
            return []
        log_id = before.log_id.hex()
        require(
            "" in asked or log_id in asked,
            DECIDED,
            f"what log {log_id} decides was meant for it",
            f"request {request_id} was meant for {sorted(asked)}",
        )
        return asked[log_id] if log_id in asked else asked[""]

    def answered(self, outcome: Outcome) -> None:
        """I2: the outcome of a request is durable, and in the record and the epoch that it names. An answer
        that the log is frozen belongs to a state in which it is.
        """
        witness = self._world.witness
        known = witness.records.get(outcome.state_id)
        if not outcome.taken:
            self._is_restricted(outcome)
            return
        epoch = None if known is None else decode_epoch(known.value)
        if epoch is not None and epoch.epoch != outcome.epoch:
            epoch = None
        code = "" if outcome.rejection is None else outcome.rejection.code
        applied = epoch is not None and epoch.request_id == outcome.request_id
        refused = epoch is not None and any(
            isinstance(fact, CommandRefused)
            and (fact.request_id, fact.code) == (outcome.request_id, code)
            for fact in epoch.facts
        )
        self._world.demand(
            applied if outcome.applied else refused,
            DECIDED,
            f"request {outcome.request_id} was {code or 'applied'} in epoch {outcome.epoch}, as is told",
            "that epoch is not durable"
            if epoch is None
            else f"that epoch is {epoch.command} {epoch.request_id}",
        )

    def _is_restricted(self, outcome: Outcome) -> None:
        code = "" if outcome.rejection is None else outcome.rejection.code
        if code == EXPIRED:
            self._is_expired(outcome)
        image = self._world.witness.image_at(outcome.state_id)
        with self._world.checking():
            check_not_taken(image, code, outcome.epoch)

    def _is_expired(self, outcome: Outcome) -> None:
        with self._world.checking():
            self._requests.expired(outcome.request_id, outcome.state_id)


def _check_term(before: Image, envelope: Envelope, epoch: Epoch) -> None:
    term, current = getattr(envelope.command, "term", None), before.topology.coordinator.term
    require(
        term in (None, current) or epoch.command == CLAIM,
        DECIDED,
        f"epoch {epoch.epoch} comes from the coordinator of term {current}",
        f"it is a command of term {term}",
    )


def epoch_line(epoch: Epoch, image: Image) -> str:
    """Return the line of a trace for a winner and the resulting state."""
    topology = image.topology
    open_ = [f"{t.kind} {','.join(t.nodes())} {t.state}" for t in topology.open()]
    return (
        f"epoch {epoch.epoch} {epoch.command} by {epoch.actor or '-'}: {'; '.join(open_) or 'idle'}"
        f" version {topology.version} fence {topology.fence_version}"
    )
