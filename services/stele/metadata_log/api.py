"""Requests and answers of /v1/commands. All others are in ``runtime.answers``."""

from typing import TYPE_CHECKING

import msgspec

from stele.domain.commands import (
    AnyCommand,
    Envelope,
    Outcome,
    Rejection,
    command_name,
)
from stele.runtime.request_ids import new_request_id

if TYPE_CHECKING:
    from stele.runtime.callers import Caller


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with its actor and reason. Without ``request_id`` the service creates one.

    Send your own request id, a UUID of version 7, to retry after a time-out: all requests with one id
    take effect once. A retry without one is another request.
    """

    command: AnyCommand
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""

    def envelope(self, horizon_ms: int, caller: "Caller | None" = None) -> Envelope:
        """Return the envelope. A created id is newer than the log's horizon.

        Raises HttpError if ``caller`` is known and may not send the command.
        """
        if caller is not None:
            caller.check(command_name(self.command))
        return Envelope(
            request_id=self.request_id or new_request_id(horizon_ms=horizon_ms),
            command=self.command,
            actor=self.actor if caller is None else caller.actor(self.actor),
            reason=self.reason,
            origin=self.origin or "http",
            log_id=self.log_id,
        )


class OutcomeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command: applied as ``epoch``, or rejected at ``epoch``."""

    request_id: str
    applied: bool
    epoch: int
    state_id: str
    rejection: Rejection | None = None
    log_id: str = ""


def outcome_answer(outcome: Outcome) -> OutcomeAnswer:
    return OutcomeAnswer(
        request_id=outcome.request_id,
        applied=outcome.applied,
        epoch=outcome.epoch,
        state_id=outcome.state_id.hex(),
        rejection=outcome.rejection,
        log_id=outcome.log_id.hex(),
    )
