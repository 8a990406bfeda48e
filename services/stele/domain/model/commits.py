"""The restriction of commands: the fact, and the command that sets it."""

from __future__ import annotations

import msgspec

from stele.domain.base import Command, Fact
from stele.domain.names import CommitMode


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """The actors whose commands the log takes: all, none, or ``actor`` alone.

    ``by``, ``reason`` and ``since_epoch`` describe the command that set the mode. ``since_ms`` is
    in milliseconds since 1970 and serves display only.
    """

    mode: CommitMode = CommitMode.OPEN
    actor: str = ""
    by: str = ""
    reason: str = ""
    since_epoch: int = 0
    since_ms: int = 0


class CommitsRestricted(Fact, frozen=True):
    """The mode that holds from this epoch on.

    With ``open`` the log takes commands of all actors again.
    """

    commits: Commits


CommitsFact = CommitsRestricted


class RestrictCommits(Command, frozen=True, tag="restrict_commits", kw_only=True):
    """Freeze the log, restrict it to one ``actor``, or open it again.

    The log takes this command in every mode and from every actor.
    """

    mode: CommitMode
    actor: str = ""


CommitsCommand = RestrictCommits
