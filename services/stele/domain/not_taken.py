"""Reasons for which a command is not taken: nothing is decided or remembered under its id."""

from datetime import UTC, datetime
from typing import Final

from stele.domain.base import Rejection
from stele.domain.commands import Envelope, LoadState, RestrictCommits, RevertState
from stele.domain.model.commits import Commits
from stele.domain.model.requests import is_id, state_time_ms, time_ms
from stele.domain.names import CommitMode

MAX_AHEAD_MS: Final = 10 * 60 * 1000
"""Limit for an id's time ahead of the log's, in milliseconds.

Clocks differ by less. One id from far ahead could later raise the horizon above all valid ids.
"""
HORIZON_MS: Final = "horizon_ms"

BUSY: Final = "busy"
BAD_ID: Final = "bad_request_id"
FROM_THE_FUTURE: Final = "request_id_from_the_future"
REUSED: Final = "request_id_reused"
EXPIRED: Final = "request_id_expired"
NOT_FOUNDED: Final = "not_founded"
OLDER_CLUSTER: Final = "older_cluster"
OTHER_LOG: Final = "other_log"
FROZEN: Final = "frozen"
SINGLE_USER: Final = "single_user"

OF_THE_ID: Final = frozenset({BAD_ID, FROM_THE_FUTURE, REUSED, EXPIRED})
"""Refusals of the id alone. No command was decided, and the same command can be decided under
another id.
"""
RESTRICTED: Final = frozenset({FROZEN, SINGLE_USER})
"""The log takes the command after it is thawed."""
LATER: Final = RESTRICTED | {BUSY}
"""The same command may be taken later, under the same id."""


def check_id(
    request_id: str, state_id: bytes, now_ms: int, horizon_ms: int = -1
) -> Rejection | None:
    """Return what is wrong with an id, or None.

    The log's time is that of its newest state id, or the writer's clock if that is later. The clock
    counts because the next state id will have that time. Otherwise a log that was idle for an hour
    would reject all new ids. A state id far ahead of the clock came from a writer with a wrong
    clock, and counts for ``MAX_AHEAD_MS`` at most. Ids of its time would raise the horizon above
    all others. If the horizon was raised nevertheless, only ids after it can be taken.
    """
    if not is_id(request_id):
        return Rejection(
            BAD_ID,
            f"'{request_id[:80]}' is not a request id: it must be a UUID of version 7, in lower case.",
            "`stele id` makes one; send the same one again when you retry.",
        )
    asked_ms = time_ms(request_id)
    if asked_ms <= now_ms:
        return None
    newest_ms = max(now_ms, min(state_time_ms(state_id), now_ms + MAX_AHEAD_MS), horizon_ms)
    ahead_ms = asked_ms - newest_ms
    if ahead_ms > MAX_AHEAD_MS:
        return Rejection(
            FROM_THE_FUTURE,
            f"The time inside {request_id} is {ahead_ms // 1000} s ahead of the log's.",
            "Set the clock of the machine that made the id, and make a new one.",
            {"ahead_ms": str(ahead_ms)},
        )
    return None


def reused(epoch: int) -> Rejection:
    return Rejection(
        REUSED,
        f"This request id stands for another command, which was decided at epoch {epoch}.",
        "Send each command with a new id; `stele id` makes one.",
        {"epoch": str(epoch)},
    )


def expired(horizon_ms: int) -> Rejection:
    return Rejection(
        EXPIRED,
        "The request id is older than what the log remembers: if it was not decided, it never will be.",
        "Look whether the change is there; if not, send it under a new id."
        f" `stele id --after {horizon_ms}` makes one that is new enough, whatever the clock says.",
        {HORIZON_MS: str(horizon_ms)},
    )


def horizon_of(rejection: Rejection | None) -> int:
    """Return the horizon that an id must exceed, as the newest refusal states it, or -1."""
    return -1 if rejection is None else int(rejection.details.get(HORIZON_MS, -1))


def moved_on(told_ms: int, before_ms: int) -> bool:
    """Return True if a refusal has a later horizon than the one before.

    The caller then sends an id after it at once. A log with a short memory may have moved its
    horizon while a process was paused.
    """
    return told_ms > before_ms


def deleted(epoch: int) -> Rejection:
    return Rejection(
        EXPIRED,
        f"The request may have been decided at epoch {epoch}, which was deleted from the archive since"
        " (archive_keep_days, archive_keep_epochs): what became of it is not known any more.",
        "Look whether the change is there; if not, send it under a new id.",
        {"epoch": str(epoch)},
    )


def unreadable(epoch: int) -> Rejection:
    return Rejection(
        BUSY,
        f"The request may have been decided at epoch {epoch}, which cannot be read now.",
        "Try again in a moment with the same request id.",
        {"epoch": str(epoch)},
    )


# The reason for which a restricted log does not take a command, as a rejection and in words.


ALWAYS: Final = (RestrictCommits, RevertState, LoadState)
"""Commands that a restricted log takes. Overrides require a restricted log; their own ``decide``
checks the actor.
"""
CODES: Final = {CommitMode.FROZEN: FROZEN, CommitMode.SINGLE_USER: SINGLE_USER}


def restricted(commits: Commits, envelope: Envelope) -> Rejection | None:
    """Return the rejection of a command that the log does not take, or None.

    The log always takes commands that restrict it, open it again, or override its state.
    """
    if takes_from(commits, envelope.actor) or isinstance(envelope.command, ALWAYS):
        return None
    # This answer decides nothing, so the request id may be sent again (docs/design.md, rule 4).
    return Rejection(
        CODES[commits.mode],
        f"{_sentence(restricted_text(commits))} Nothing was decided.",
        f"`stele log thaw` opens it to all; ask {commits.by or 'whoever did it'} first. Then send it again: the"
        " same request id will do.",
        {
            "mode": commits.mode,
            "actor": commits.actor,
            "by": commits.by,
            "reason": commits.reason,
            "since_epoch": str(commits.since_epoch),
            "since_ms": str(commits.since_ms),
        },
    )


def takes_from(commits: Commits, actor: str) -> bool:
    """Return True if the log takes the commands of this actor."""
    match commits.mode:
        case CommitMode.OPEN:
            return True
        case CommitMode.FROZEN:
            return False
        case CommitMode.SINGLE_USER:
            return actor == commits.actor


def restricted_text(commits: Commits) -> str:
    """Return the mode, its start, author and reason in words; empty while the log is open."""
    what = {
        CommitMode.OPEN: "",
        CommitMode.FROZEN: "the log is frozen",
        CommitMode.SINGLE_USER: f"the log takes commands of '{commits.actor}' alone",
    }[commits.mode]
    if not what:
        return ""
    at = datetime.fromtimestamp(commits.since_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    by = f" by order of {commits.by}" if commits.by else ""
    return f"{what} since epoch {commits.since_epoch} ({at}){by}: {commits.reason}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
