"""What /v1/commands takes and how it is answered. All other answers: ``runtime/answers/metadata_log.py``."""

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

    def envelope(self, horizon_ms: int, caller: "Caller | None" = None) -> Envelope:
        """Under an id that is newer than the log's horizon where the caller brings none. Raises HttpError for
        what ``caller``, where that is known, may not ask for.
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
    """Applied as ``epoch``; or refused by ``rejection`` in the light of ``epoch``."""

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
