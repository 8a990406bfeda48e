"""Why a command is not taken while the log is frozen or of one actor; and the same in words for people."""

from datetime import UTC, datetime
from typing import Final

from stele.domain.base import Rejection
from stele.domain.commands import Envelope, LoadState, RestrictCommits, RevertState
from stele.domain.commits.facts import Commits
from stele.domain.names import CommitMode
from stele.domain.requests.not_taken import FROZEN, SINGLE_USER

ALWAYS: Final = (RestrictCommits, RevertState, LoadState)
"""Overrides are for a log that is restricted; whose they may be is decided with them."""
CODES: Final = {CommitMode.FROZEN: FROZEN, CommitMode.SINGLE_USER: SINGLE_USER}


def restricted(commits: Commits, envelope: Envelope) -> Rejection | None:
    """None when the log takes the command. What restricts it, opens it
    again, or overrides its state, it always takes."""
    if takes_from(commits, envelope.actor) or isinstance(envelope.command, ALWAYS):
        return None
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
    """Whether the log takes the commands of this actor."""
    match commits.mode:
        case CommitMode.OPEN:
            return True
        case CommitMode.FROZEN:
            return False
        case CommitMode.SINGLE_USER:
            return actor == commits.actor


def restricted_text(commits: Commits) -> str:
    """Whose the log is, since when, who said so and why; empty while it is open."""
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
