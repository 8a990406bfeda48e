"""Whose commands the log takes: decided, folded, shown; entered in the registry."""

from collections.abc import Iterable

from stele.domain.base import Rejection
from stele.domain.commands import MAX_TEXT_CHARS
from stele.domain.commits.facts import Commits, CommitsRestricted, RestrictCommits
from stele.domain.context import Context, Decision
from stele.domain.names import CommitMode
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields, row_json

OPEN = Commits()


def restrict_commits(context: Context, command: RestrictCommits) -> Decision:
    """Whoever restricts last is the one whom the state names; the history has those before."""
    envelope, opens = context.envelope, command.mode is CommitMode.OPEN
    if opens and context.image.commits == OPEN:
        return ()
    if not opens and not envelope.reason:
        return Rejection(
            "reason_missing",
            "Everybody whose command is not taken is told why, and there is no reason.",
            "Say it with --reason.",
        )
    refused = _check_actor(command)
    if refused is not None:
        return refused
    restricted = Commits(
        mode=command.mode,
        actor=command.actor,
        by=envelope.actor,
        reason=envelope.reason,
        since_epoch=context.epoch,
        since_ms=context.at_ms,
    )
    return (CommitsRestricted(restricted),)


def _check_actor(command: RestrictCommits) -> Rejection | None:
    single = command.mode is CommitMode.SINGLE_USER
    if single == bool(command.actor) and len(command.actor) <= MAX_TEXT_CHARS:
        return None
    if len(command.actor) > MAX_TEXT_CHARS:
        return Rejection(
            "text_too_long",
            f"The actor's name has more than {MAX_TEXT_CHARS} characters.",
            "Give the name exactly as it stands in that actor's commands.",
        )
    return Rejection(
        "bad_actor",
        f"'{command.mode}' is of actor '{command.actor}': single_user names one, the others name none.",
        "For single_user name the actor exactly as it stands in that actor's commands.",
    )


def commits_restricted(_: Commits, fact: CommitsRestricted) -> Commits:
    return OPEN if fact.commits.mode is CommitMode.OPEN else fact.commits


def to_facts(commits: Commits) -> Iterable[CommitsRestricted]:
    if commits != OPEN:
        yield CommitsRestricted(commits)


def view(commits: Commits) -> Json:
    return {"commits": commits}


def diff(before: Commits, after: Commits) -> Json:
    return {"commits": changed_fields(row_json(before), row_json(after))}


DOMAIN = Domain(
    name="commits",
    empty=OPEN,
    decide={RestrictCommits: restrict_commits},
    apply={CommitsRestricted: commits_restricted},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
