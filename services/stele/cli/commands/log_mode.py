"""``stele log freeze|thaw|single-user``: whose commands the log takes."""

from __future__ import annotations

from stele.cli.errors import UsageError
from stele.cli.options import Change, Where
from stele.cli.output import console
from stele.cli.reading import Reading
from stele.domain.commands import RestrictCommits
from stele.domain.commits.restricted import restricted_text
from stele.domain.names import CommitMode


def freeze(
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Have the log take no command until it is thawed, whoever sends it: say why with --reason.

    What had been decided by then stays; what comes later is not taken, and nothing is remembered of it, so it
    may be sent again under its request id. Reads go on, data is written and read, and streams run to their end.
    """
    _restrict(RestrictCommits(mode=CommitMode.FROZEN), change, where)


def single_user(
    actor: str,
    /,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Have the log take the commands of one actor alone until it is thawed: say why with --reason.

    Where callers show tokens it is whose token that is; else a name that everybody may give, which keeps others
    out who go by the rules, not those who do not.

    Args:
        actor: Exactly as `stele epochs` shows it: the user's name, or what --actor says.
    """
    _restrict(RestrictCommits(mode=CommitMode.SINGLE_USER, actor=actor), change, where)


def thaw(
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Have the log take everybody's commands again, whoever had restricted it."""
    _restrict(RestrictCommits(mode=CommitMode.OPEN), change, where)


def _restrict(command: RestrictCommits, change: Change, where: Where) -> None:
    opens = command.mode is CommitMode.OPEN
    if not opens and not change.reason:
        raise UsageError(
            "Everybody whose command is not taken will be told why.", 'Say it: --reason "...".'
        )
    envelope, out = change.envelope(command), console()
    with where.client() as client:
        before = restricted_text(Reading(client).topology().commits)
        out.print(f"request {envelope.request_id}", soft_wrap=True)
        epoch = change.submit(client, envelope).epoch
        now = Reading(client).topology()
    if before:
        out.print(f"before: {before}", soft_wrap=True, markup=False)
    if opens:
        out.print(f"open to all since epoch {epoch}", soft_wrap=True)
    elif now.commits.since_epoch == epoch:
        out.print(
            f"{restricted_text(now.commits)}; `stele log thaw` opens it",
            soft_wrap=True,
            markup=False,
        )
    else:
        shown = restricted_text(now.commits) or "the log is open to all"
        out.print(f"done at epoch {epoch}; since then: {shown}", soft_wrap=True, markup=False)
