"""What a recovery gives up, and whether whoever asks for it has said so.

A recovery cannot be undone, and epochs that it leaves out were acknowledged to somebody. So what it may lose is
named by whoever asks for it: each replica that does not answer, and the epoch after which epochs are lost that
somebody has read.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from stele.domain.base import Rejection
from stele.domain.recovery.histories import Choice

MOST_NAMED = 5


class Absent(msgspec.Struct, frozen=True):
    """A catch-up replica that tells nothing, and why. ``replica_id`` is empty where nobody tells it."""

    replica_id: str
    url: str
    why: str

    @property
    def name(self) -> str:
        return full_name(self.replica_id, self.url)

    def is_among(self, names: Collection[str]) -> bool:
        return any(is_called(self.name, self.url, each) for each in names)


def full_name(replica_id: str, url: str) -> str:
    """What people are shown of a replica."""
    return f"{replica_id} ({url})" if replica_id else url


def id_of(full: str, url: str) -> str:
    """The id in a full name."""
    return full.removesuffix(f" ({url})")


def is_called(full: str, url: str, name: str) -> bool:
    """Whether people may mean the replica of this full name by ``name``: that, its id alone, or its address."""
    return name in (full, id_of(full, url), url)


def missed(absent: Iterable[Absent], without: Collection[str]) -> tuple[Absent, ...]:
    """Those without whom nobody has said that the log may go on."""
    return tuple(each for each in absent if not each.is_among(without))


def unagreed(
    choice: Choice, absent: Iterable[Absent], without: Collection[str], lose_after: int | None
) -> Rejection | None:
    """Why this is not gone on from; None when all that is given up is named: replicas that do not answer, by id
    or address, and the epoch that the log goes on after where later ones are known to somebody.
    """
    found = [_unheard(missing)] if (missing := missed(absent, without)) else []
    if choice.known_epoch > choice.epoch and lose_after != choice.epoch:
        found.append(_lost(choice))
    if choice.given_up and lose_after != choice.epoch:
        found.append(_given_up(choice))
    says, hints = (" ".join(each) for each in zip(*found, strict=True)) if found else ("", "")
    return Rejection("unagreed", says, hints) if found else None


def unheard(missing: Sequence[Absent]) -> str:
    """That they say nothing, and why."""
    names = ", ".join(each.name for each in missing)
    why = "; ".join(each.why.rstrip(".") for each in missing)
    tells = "do not tell what they hold" if len(missing) > 1 else "does not tell what it holds"
    return f"{names} {tells} ({why})"


def _unheard(missing: Sequence[Absent]) -> tuple[str, str]:
    """What is the case, and what to do."""
    ids = [each.replica_id for each in missing]
    names_one = (bool(each) and ids.count(each) == 1 for each in ids)
    options = " ".join(
        f"--without {each.replica_id if by_id else each.url}"
        for each, by_id in zip(missing, names_one, strict=True)
    )
    has, them = ("they alone have", "them") if len(missing) > 1 else ("it alone has", "it")
    return (
        f"{unheard(missing)}: epochs that {has} would be given up.",
        f"Start {them}, or go on without {them}: {options}.",
    )


def _given_up(choice: Choice) -> tuple[str, str]:
    told = "; ".join(
        f"{each.source} has epochs {each.first} to {each.last} of log {each.log_id}"
        for each in choice.given_up[:MOST_NAMED]
    )
    return (
        f"{told}: an earlier recovery gave them up.",
        "To go back to them, and give up what came after it, name who has them: --take. To leave them: "
        f"--lose-after {choice.epoch}.",
    )


def _lost(choice: Choice) -> tuple[str, str]:
    known = [*choice.ahead[:MOST_NAMED], *(["others"] if choice.ahead[MOST_NAMED:] else [])]
    return (
        f"Epochs {choice.epoch + 1} to {choice.known_epoch}, known to"
        f" {', '.join(known) or 'somebody'}, would be lost: nobody who answers can give them.",
        "Start what may hold them, such as a replica or a service that is down."
        f" To give them up, say --lose-after {choice.epoch}.",
    )
