"""What an epoch decided: the request that it became, and those that it refused."""

import msgspec

from stele.domain.commands import Envelope, Outcome, Rejection, command_name
from stele.domain.facts import Epoch
from stele.domain.requests.facts import CommandRefused

MAX_TEXT_CHARS = 4096
"""Of each text of a refusal in the log; a longer one is cut."""


class Decision(msgspec.Struct, frozen=True):
    """What became of a request; ``digest`` tells which command it was."""

    request_id: str
    digest: bytes
    outcome: Outcome


def decided_ids(epoch: Epoch) -> list[str]:
    """Ids of the requests that were decided by an epoch."""
    found = [fact.request_id for fact in epoch.facts if type(fact) is CommandRefused]
    if epoch.request_id:
        found.append(epoch.request_id)
    return found


def decisions_of(epoch: Epoch) -> dict[str, Decision]:
    """The same with their outcomes, as they are answered."""
    found = {
        fact.request_id: Decision(fact.request_id, fact.digest, _refused(epoch, fact))
        for fact in epoch.facts
        if type(fact) is CommandRefused
    }
    if epoch.request_id:
        outcome = Outcome(
            request_id=epoch.request_id,
            applied=True,
            epoch=epoch.epoch,
            state_id=epoch.state_id,
            log_id=epoch.log_id,
        )
        found[epoch.request_id] = Decision(epoch.request_id, epoch.command_digest, outcome)
    return found


def refusal(envelope: Envelope, digest: bytes, rejection: Rejection) -> CommandRefused:
    """A refusal as the log keeps it."""
    return CommandRefused(
        request_id=envelope.request_id,
        digest=digest,
        command=command_name(envelope.command),
        code=rejection.code,
        message=_cut(rejection.message),
        hint=_cut(rejection.hint),
        details={name: _cut(text) for name, text in rejection.details.items()},
        actor=_cut(envelope.actor),
        reason=_cut(envelope.reason),
        origin=_cut(envelope.origin),
    )


def rejection_of(fact: CommandRefused) -> Rejection:
    """A refusal as its caller is told."""
    return Rejection(fact.code, fact.message, fact.hint, fact.details)


def _refused(epoch: Epoch, fact: CommandRefused) -> Outcome:
    return Outcome(
        request_id=fact.request_id,
        applied=False,
        epoch=epoch.epoch,
        state_id=epoch.state_id,
        rejection=rejection_of(fact),
        log_id=epoch.log_id,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
