"""The restriction of commands: the log takes those of all actors, of one actor, or of none."""

from collections.abc import Iterable

from stele.domain.base import Rejection, required
from stele.domain.commands import MAX_TEXT_CHARS
from stele.domain.context import Context, Decision
from stele.domain.model.commits import Commits, CommitsRestricted, RestrictCommits
from stele.domain.names import CommitMode
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json

OPEN = Commits()


def restrict_commits(context: Context, command: RestrictCommits) -> Decision:
    """Set the commit mode.

    The state names the last actor who set it; the history has the earlier ones.

    Opening an open log changes nothing. Any other mode needs a reason, because each refusal shows
    it.
    """
    envelope, opens = context.envelope, command.mode is CommitMode.OPEN
    # Only the repeated opening is a no-op. A repeated freeze is a new fact: it replaces actor,
    # reason and time.
    if opens and context.image.commits == OPEN:
        return ()
    if not opens and not envelope.reason:
        return Rejection(
            "reason_missing",
            "Rejected callers get the reason, and there is none.",
            "Say it with --reason.",
        )
    required(_check_actor(command))
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
            "Give the name exactly as in that actor's commands.",
        )
    return Rejection(
        "bad_actor",
        f"'{command.mode}' is of actor '{command.actor}': single_user names one, the others name none.",
        "For single_user name the actor exactly as in that actor's commands.",
    )


def commits_restricted(_: Commits, fact: CommitsRestricted) -> Commits:
    # The opener is not kept, so the state equals that of a log that was never frozen.
    return OPEN if fact.commits.mode is CommitMode.OPEN else fact.commits


def to_facts(commits: Commits) -> Iterable[CommitsRestricted]:
    if commits != OPEN:
        yield CommitsRestricted(commits)


def rows(commits: Commits) -> Json:
    return {"commits": commits}


DOMAIN = Domain(
    name="commits",
    empty=OPEN,
    decide={RestrictCommits: restrict_commits},
    apply={CommitsRestricted: commits_restricted},
    to_facts=to_facts,
    rows=rows,
)
