"""The HTTP interface's own types: what /v1/commands takes, and the shapes of all answers.

The answers are built by ``domain.view``; these types say the same as schemas, for /openapi.json, and a
test holds the two together.
"""

from typing import Any

import msgspec

from stele.domain.commands import AnyCommand, Envelope, Outcome, Rejection
from stele.domain.facts import AnyFact
from stele.domain.membership.facts import Node
from stele.domain.requests.facts import Request
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.schema.facts import Keyspace
from stele.domain.topology.facts import Coordinator, Transition, Versions
from stele.runtime.request_ids import new_request_id


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command, and who asks for it and why. Without ``request_id`` the service draws one.

    To be able to ask again after a time-out, send a request id of your own, a UUID of version 7: it takes
    effect once. A retry without one is another request.
    """

    command: AnyCommand
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""

    def envelope(self) -> Envelope:
        return Envelope(
            request_id=self.request_id or new_request_id(),
            command=self.command,
            actor=self.actor,
            reason=self.reason,
            origin=self.origin or "http",
            log_id=self.log_id,
        )


class OutcomeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Applied as ``epoch``; or refused by ``rejection`` in the light of ``epoch``."""

    request_id: str
    applied: bool
    epoch: int
    state_id: str
    rejection: Rejection | None = None
    log_id: str = ""


class EpochAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of the log; state ids and digests in hex."""

    prev_state_id: str
    state_id: str
    log_id: str
    witness_state_id: str
    epoch: int
    witness_epoch: int
    request_id: str
    command: str
    facts: tuple[AnyFact, ...]
    command_digest: str
    actor: str
    reason: str
    origin: str
    at_ms: int
    required_features: tuple[str, ...]


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is true at an epoch."""

    cluster: str
    cluster_id: str
    log_id: str
    epoch: int
    state_id: str
    hash: str
    topology: Versions
    coordinator: Coordinator
    transitions: tuple[Transition, ...]
    nodes: tuple[Node, ...]
    requests: tuple[Request, ...]
    keyspaces: tuple[Keyspace, ...]
    placements: dict[str, tuple[RangeReplicas, ...]]
    features: tuple[str, ...]
    settings: dict[str, str]


class DiffAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs between two epochs, by domain; see ``domain.view.diff``."""

    from_epoch: int
    to_epoch: int
    cluster: dict[str, Any]
    topology: dict[str, Any]
    coordinator: dict[str, Any]
    transitions: dict[str, Any]
    nodes: dict[str, Any]
    requests: dict[str, Any]
    keyspaces: dict[str, Any]
    placements: dict[str, Any]
    features: dict[str, Any]
    settings: dict[str, Any]


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The one shape of all errors."""

    code: str
    message: str
    hint: str
    details: dict[str, Any]


def outcome_answer(outcome: Outcome) -> OutcomeAnswer:
    return OutcomeAnswer(
        request_id=outcome.request_id,
        applied=outcome.applied,
        epoch=outcome.epoch,
        state_id=outcome.state_id.hex(),
        rejection=outcome.rejection,
        log_id=outcome.log_id.hex(),
    )
