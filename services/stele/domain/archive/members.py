"""Who the members of the archive are to be, and which of them the others can do without."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Final

from stele.domain.archive.facts import Replica
from stele.domain.archive.limits import ARCHIVE_REPLICATION
from stele.domain.archive.majority import disputed, diverged, first_epoch, has_all, majority
from stele.domain.image import Image
from stele.domain.names import ReplicaState

ANY_DC: Final = ""
"""In a replication: copies that may be in any dc."""
_STAYS: Final = {ReplicaState.MEMBER: 0, ReplicaState.JOINING: 1, ReplicaState.CANDIDATE: 2}
"""Who is there already is chosen before others."""


def choose(
    replicas: Iterable[Replica], wanted: Mapping[str, int], last: Set[str] = frozenset()
) -> tuple[str, ...]:
    """Members for a replication, in the order of choice: spread over dcs, then over racks; those that are
    members already before others. Those in ``last`` only for want of others. Fewer, when there are not so many.
    """
    found, chosen = list(replicas), list[Replica]()

    def rank(each: Replica) -> tuple[bool, int, int, int, str]:
        in_dc = sum(other.dc == each.dc for other in chosen)
        in_rack = sum((other.dc, other.rack) == (each.dc, each.rack) for other in chosen)
        return each.replica_id in last, in_dc, in_rack, _STAYS[each.state], each.replica_id

    for dc, count in sorted(wanted.items()):
        for _ in range(count):
            free = [r for r in found if dc in (ANY_DC, r.dc) and r not in chosen]
            chosen += sorted(free, key=rank)[:1]
    return tuple(each.replica_id for each in chosen)


def wanted_members(image: Image) -> dict[str, int]:
    """What the setting asks for: dc -> members, or how many in any."""
    return ARCHIVE_REPLICATION.of(image.features.settings)


def fits(replicas: Iterable[Replica], others: Iterable[Replica], wanted: Mapping[str, int]) -> bool:
    """As many of these as of others, where the replication counts dcs in each of them."""
    by_dc = ANY_DC not in wanted
    counts = [Counter(each.dc if by_dc else ANY_DC for each in side) for side in (replicas, others)]
    return counts[0] == counts[1]


def has_room(image: Image, replica_id: str, dc: str) -> bool:
    """A replica may become a member at once: fewer are than the setting asks for, and it needs nothing that is
    not in the log; or there is none at all.
    """
    archive, wanted = image.archive, wanted_members(image)
    members = [archive.replicas[name] for name in archive.members() if name != replica_id]
    if image.requests.reconfigurations() or (members and archived_until(image)):
        return False
    if ANY_DC in wanted:
        return len(members) < wanted[ANY_DC]
    return sum(each.dc == dc for each in members) < wanted.get(dc, 0)


def archived_until(image: Image) -> int:
    """Some epochs up to this one are in the archive alone: they were deleted from the log, or it is a recovered
    one, which begins behind them. 0: the log has all.
    """
    last_epochs = (each.last_epoch for each in image.founding.incarnations)
    return max(image.archive.truncated_epoch, *last_epochs, 0)


def why_not_without(image: Image, replica_id: str) -> str:
    """Why the other members cannot do without this one; empty when they can, or when it is none.

    They can when a majority of them has all that is not in the log, from the same epoch on as before.
    """
    archive, until = image.archive, archived_until(image)
    members = archive.members()
    others = [name for name in members if name != replica_id]
    if len(others) == len(members):
        return ""
    if not others:
        return "it is the only one"
    if not until:
        return ""
    from_epoch = first_epoch(archive, members)
    having = [name for name in others if has_all(archive, name, from_epoch, until)]
    needed = majority(len(others))
    if len(having) >= needed:
        return ""
    return (
        f"{needed} of the other members must have epochs {from_epoch} to {until}, which are not all in the log;"
        f" {', '.join(having) or 'none'} has"
    )


def why_not_member(image: Image, replica_id: str) -> str:
    """What is waited for until a joining replica becomes a member; empty when it has all that the members have,
    up to the epoch in which it began to join.
    """
    archive = image.archive
    from_epoch = first_epoch(archive, archive.members())
    to_epoch = max(archive.replicas[replica_id].since_epoch, archived_until(image))
    if has_all(archive, replica_id, from_epoch, to_epoch):
        return ""
    announced, wrong = archive.announced(replica_id), diverged(archive).get(replica_id)
    if wrong:
        found = f"its snapshot of epoch {wrong[-1]} is not the members'"
    elif not announced:
        found = "it has announced none"
    else:
        newest = announced[-1]
        others = disputed(archive, replica_id, newest)
        found = f"it has {newest.first_epoch} to {newest.epoch}"
        found += f", of which {', '.join(others)} has another snapshot" if others else ""
    return (
        f"{replica_id} to have a snapshot of epoch {to_epoch} or later, and all epochs from {from_epoch} on;"
        f" {found}"
    )
