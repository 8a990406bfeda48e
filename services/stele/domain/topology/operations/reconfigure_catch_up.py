"""Change of the archive's members (CEP-21, ReconfigureCMS): one at a time, additions before
removals.

The coordinator, which observes liveness, chooses the members. Then each new member joins: it
receives the data of the members, and takes the snapshot that is requested when it begins. It counts
once it has announced that snapshot. Then members are removed, each once a majority of the others
has all epochs deleted from the log. So there is always a majority with them. Requests wait for each
other, in the order of submission.

It can be cancelled until it is done. A joining replica becomes a candidate again; a new member
stays one.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.archive import (
    ARCHIVE_REPLICATION,
    ArchiveImage,
    SnapshotAsked,
)
from stele.domain.model.features import SettingChanged
from stele.domain.model.operations import ReconfigureCatchUp
from stele.domain.model.requests import Request
from stele.domain.names import ReplicaState, RequestKind, RequestStatus
from stele.domain.rules.requests import ended, new_request, overtaken
from stele.domain.rules.retention import (
    ANY_DC,
    back_to_candidates,
    choose,
    wanted_members,
    why_not_member,
    why_not_without,
    with_state,
)
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    MissingCondition,
    Operation,
    Served,
)

replace = msgspec.structs.replace


def reconfigure_catch_up(context: Context, command: ReconfigureCatchUp) -> Decision:
    """Queue it, and write the setting if it asks for another replication."""
    image = context.image
    required(_check_asked(image, command))
    before = wanted_members(image)
    wanted = ARCHIVE_REPLICATION.parsed(command.replication) if command.replication else before
    if wanted is None:
        return Rejection(
            "bad_replication",
            f"'{command.replication[:80]}' does not say how many catch-up replicas are to be members.",
            f"Give {ARCHIVE_REPLICATION.wanted()}.",
        )
    for dc in sorted(wanted):
        if dc:
            required(bad_name("dc", dc))
    text = ARCHIVE_REPLICATION.text(wanted)
    required(_check_retired(image, command.retired, wanted))
    staying = tuple(name for name in image.archive.members() if name not in command.retired)
    asked = new_request(
        context,
        RequestKind.RECONFIGURE_CATCH_UP,
        archive_replication=text,
        members=staying if command.retired else (),
    )
    if wanted == before:
        return (asked,)
    return _check_enough(image, wanted) or (SettingChanged(ARCHIVE_REPLICATION.name, text), asked)


def _check_asked(image: Image, command: ReconfigureCatchUp) -> Rejection | None:
    if not image.archive.replicas:
        return Rejection(
            "no_replicas",
            "There is no catch-up replica.",
            "Start the service catch-up: its replicas announce themselves.",
        )
    if not command.as_of_epoch:
        return None
    if image.requests.reconfigurations() or command.as_of_epoch != image.archive.changed_epoch:
        return overtaken(image, "The catch-up replicas have changed since this was asked for.")
    return None


def _check_enough(image: Image, wanted: dict[str, int]) -> Rejection | None:
    replicas = image.archive.replicas.values()
    for dc, count in sorted(wanted.items()):
        there = sum(dc in (ANY_DC, each.dc) for each in replicas)
        if there < count:
            where = f" in '{dc}'" if dc else ""
            return Rejection(
                "too_few_replicas",
                f"{count} catch-up replicas{where} are to be members; there are {there}.",
                "Start more of them, each with its own id and folder, or ask for fewer.",
                {"dc": dc, "replicas": str(there)},
            )
    return None


def _check_retired(
    image: Image, retired: tuple[str, ...], wanted: dict[str, int]
) -> Rejection | None:
    """Refuse unless retired replicas are members and enough others can replace them."""
    archive = image.archive
    for replica_id in retired:
        if replica_id not in archive.members():
            return Rejection(
                "not_a_member",
                f"'{replica_id[:80]}' is not a member of the archive, so it cannot be retired.",
                "See the members: `stele catch-up show`.",
                {"replica": replica_id[:80]},
            )
    others = [row for name, row in archive.replicas.items() if name not in retired]
    needed = min(sum(wanted.values()), len(archive.members()))
    if retired and len(choose(others, wanted)) < needed:
        return Rejection(
            "too_few_replicas",
            f"No other catch-up replica can take the place of {', '.join(retired)}.",
            "Start another one first, with its own id and folder, or ask for fewer members as well:"
            " `stele catch-up reconfigure 2 --retire ID`.",
            {"replicas": str(len(others))},
        )
    return None


def may_be_chosen(archive: ArchiveImage, request: Request, replica_id: str) -> bool:
    """Return whether the request lets this replica become a member; a pending one excludes retired
    members.
    """
    if request.status is not RequestStatus.PENDING or not request.members:
        return True
    return replica_id in request.members or replica_id not in archive.members()


def missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the condition that its next step waits for."""
    archive, first = image.archive, image.requests.reconfigurations()[0]
    if first.request_id != request.request_id:
        return MissingCondition(f"{first.kind} ({first.request_id}), which was asked for before")
    if request.status is RequestStatus.PENDING:
        return MissingCondition("the choice of members")
    for replica_id in archive.of_state(ReplicaState.JOINING):
        why = why_not_member(image, replica_id)
        return MissingCondition(why) if why else None
    if _to_come(archive, request):
        return None
    going = _to_go(archive, request)
    whys = [(name, why_not_without(image, name)) for name in going]
    if not going or not all(why for _, why in whys):
        return None
    name, why = whys[0]
    return MissingCondition(f"{name} to be dispensable: {why}")


def _to_come(archive: ArchiveImage, request: Request) -> list[str]:
    """Return the chosen replicas that are not members yet, in the order of choice."""
    known = (archive.replicas.get(name) for name in request.members)
    return [r.replica_id for r in known if r is not None and r.state is not ReplicaState.MEMBER]


def _to_go(archive: ArchiveImage, request: Request) -> list[str]:
    return [name for name in archive.members() if name not in request.members]


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Change the state of one replica; or end, if all have their wanted state."""
    image, archive, epoch = context.image, context.image.archive, context.epoch
    for replica_id in archive.of_state(ReplicaState.JOINING):
        return (with_state(epoch, archive, replica_id, ReplicaState.MEMBER),)
    for replica_id in _to_come(archive, request):
        joining = with_state(epoch, archive, replica_id, ReplicaState.JOINING)
        # The joining replica counts once it has announced this snapshot.
        return joining, SnapshotAsked(epoch)
    # Additions come before removals, so the archive never has fewer members than needed.
    for replica_id in _to_go(archive, request):
        if not why_not_without(image, replica_id):
            return (with_state(epoch, archive, replica_id, ReplicaState.CANDIDATE),)
    return ended(context, image, request, RequestStatus.DONE, "")


def since(image: Image, request: Request) -> int:
    return image.archive.changed_epoch


def foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the members that would join and leave, if all replicas are alive."""
    archive = image.archive
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    replicas = archive.replicas.items()
    goal = choose([row for name, row in replicas if may_be_chosen(archive, request, name)], wanted)
    lines = [f"{name} becomes a member" for name in goal if name not in archive.members()]
    return (*lines, *(f"{name} is one no longer" for name in archive.members() if name not in goal))


def on_ended(image: Image, request: Request) -> Iterable[AnyFact]:
    """Return joining replicas to candidates, if it was this request's turn."""
    if request.started_epoch:
        yield from back_to_candidates(image.epoch + 1, image.archive, ())


RECONFIGURE_CATCH_UP: Final = Operation(
    kind=RequestKind.RECONFIGURE_CATCH_UP,
    command=ReconfigureCatchUp,
    ask=reconfigure_catch_up,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=missing, step=step, since=since),
    foreseen=foreseen,
    on_ended=on_ended,
)
