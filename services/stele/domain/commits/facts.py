"""Whose commands the log takes: the fact, and the command that sets it."""

import msgspec

from stele.domain.base import Command, Fact
from stele.domain.names import CommitMode


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """Everybody's commands, nobody's, or those of ``actor``; who said so, why, and since when (``since_ms``:
    milliseconds since 1970, shown to people).
    """

    mode: CommitMode = CommitMode.OPEN
    actor: str = ""
    by: str = ""
    reason: str = ""
    since_epoch: int = 0
    since_ms: int = 0


class CommitsRestricted(Fact, frozen=True):
    """From this epoch on; open: the log takes everybody's commands again."""

    commits: Commits


CommitsFact = CommitsRestricted


class RestrictCommits(Command, frozen=True, tag="restrict_commits", kw_only=True):
    """Freeze the log, leave it to one ``actor``, or open it again. It is taken whatever holds, from anybody."""

    mode: CommitMode
    actor: str = ""


CommitsCommand = RestrictCommits
