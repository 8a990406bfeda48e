"""The reason for which a restricted log does not take a command, as a rejection and in words."""

from datetime import UTC, datetime
from typing import Final

from stele.domain.base import Rejection
from stele.domain.commands import Envelope, LoadState, RestrictCommits, RevertState
from stele.domain.commits.model import Commits
from stele.domain.names import CommitMode
from stele.domain.requests.not_taken import FROZEN, SINGLE_USER

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
