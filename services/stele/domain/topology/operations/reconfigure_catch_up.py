"""Change who the members of the archive are (CEP-21, ReconfigureCMS): one at a time, additions before removals.

The coordinator, which knows who is alive, chooses the members. Then each that is to come joins: it gets what
the members have, takes the snapshot that is asked for when it begins, and counts once it has announced it.
Those who are to go follow, each once a majority of the others has all that was deleted from the log, so there
is always one. Requests wait for each other, and are served as they came.

It can be cancelled until it is done: who joins is a candidate again, who became a member stays one.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.archive.commands import ChooseMembers
from stele.domain.archive.facts import Replica, ReplicaChanged, SnapshotAsked
from stele.domain.archive.image import ArchiveImage
from stele.domain.archive.limits import ARCHIVE_REPLICATION
from stele.domain.archive.members import (
    ANY_DC,
    choose,
    wanted_members,
    why_not_member,
    why_not_without,
)
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name
from stele.domain.facts import AnyFact
from stele.domain.features.facts import SettingChanged
from stele.domain.image import Image
from stele.domain.names import ReplicaState, RequestKind, RequestStatus
from stele.domain.requests.facts import Request, RequestChanged
from stele.domain.requests.rows import ended, new_request, started
from stele.domain.topology.guards import overtaken, request_in_term
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Missing,
    Operation,
    Served,
    no_sets,
    nobody,
)
from stele.domain.topology.operations.commands import ReconfigureCatchUp

replace = msgspec.structs.replace


def reconfigure_catch_up(context: Context, command: ReconfigureCatchUp) -> Decision:
    """Queue it; the setting asks for this replication from now on."""
    image = context.image
    refused = _check_asked(image, command)
    if refused is not None:
        return refused
    before = wanted_members(image)
    wanted = ARCHIVE_REPLICATION.parsed(command.replication) if command.replication else before
    if wanted is None:
        return Rejection(
            "bad_replication",
            f"'{command.replication[:80]}' does not say how many catch-up replicas are to be members.",
            f"Give {ARCHIVE_REPLICATION.wanted()}.",
        )
    for dc in sorted(wanted):
        refused = bad_name("dc", dc) if dc else None
        if refused is not None:
            return refused
    text = ARCHIVE_REPLICATION.text(wanted)
    asked = new_request(context, RequestKind.RECONFIGURE_CATCH_UP, archive_replication=text)
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


def choose_members(context: Context, command: ChooseMembers) -> Decision:
    """The choice for the request whose turn it is, or another one while it runs; who joins and is not in it is
    a candidate again.
    """
    image, archive = context.image, context.image.archive
    request = request_in_term(image, command.term, command.target)
    if isinstance(request, Rejection):
        return request
    if request not in image.requests.reconfigurations()[:1]:
        return overtaken(image, f"It is not the turn of request {request.request_id}.")
    if command.as_of_epoch != archive.changed_epoch or command.members == request.members:
        return overtaken(image, "The catch-up replicas have changed since they were chosen.")
    refused = _check_choice(archive, request, command.members)
    if refused is not None:
        return refused
    pending = request.status is RequestStatus.PENDING
    row = replace(started(context, request) if pending else request, members=command.members)
    return RequestChanged(row), *_back_to_candidates(context.epoch, archive, command.members)


def _check_choice(
    archive: ArchiveImage, request: Request, members: tuple[str, ...]
) -> Rejection | None:
    """Each is known, and there are no more of them than was asked for."""
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    known = {name for name in members if name in archive.replicas}
    dcs = Counter(archive.replicas[name].dc for name in known)
    most = wanted.get(ANY_DC, 0)
    within = dcs.total() <= most or all(count <= wanted.get(dc, 0) for dc, count in dcs.items())
    if known and len(known) == len(members) and within:
        return None
    return Rejection(
        "bad_members",
        f"{', '.join(members)[:200] or 'Nobody'} cannot be the members: {request.archive_replication} are"
        " asked for, each of them a catch-up replica that is known, and at least one.",
        "Read the newest state and choose again.",
    )


def missing(image: Image, request: Request) -> Missing | None:
    """What its next step waits for."""
    archive, first = image.archive, image.requests.reconfigurations()[0]
    if first.request_id != request.request_id:
        return Missing(f"{first.kind} ({first.request_id}), which was asked for before")
    if request.status is RequestStatus.PENDING:
        return Missing("the choice of members")
    for replica_id in archive.of_state(ReplicaState.JOINING):
        why = why_not_member(image, replica_id)
        return Missing(why) if why else None
    if _to_come(archive, request):
        return None
    going = _to_go(archive, request)
    whys = [(name, why_not_without(image, name)) for name in going]
    if not going or not all(why for _, why in whys):
        return None
    name, why = whys[0]
    return Missing(f"{name} to be dispensable: {why}")


def _to_come(archive: ArchiveImage, request: Request) -> list[str]:
    """Those chosen who are to become members, in the order of choice."""
    known = (archive.replicas.get(name) for name in request.members)
    return [r.replica_id for r in known if r is not None and r.state is not ReplicaState.MEMBER]


def _to_go(archive: ArchiveImage, request: Request) -> list[str]:
    return [name for name in archive.members() if name not in request.members]


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """One replica changes its state; or all are as they are to be."""
    image, archive, epoch = context.image, context.image.archive, context.epoch
    for replica_id in archive.of_state(ReplicaState.JOINING):
        return (_changed(epoch, archive, replica_id, ReplicaState.MEMBER),)
    for replica_id in _to_come(archive, request):
        joining = _changed(epoch, archive, replica_id, ReplicaState.JOINING)
        return joining, SnapshotAsked(epoch)
    for replica_id in _to_go(archive, request):
        if not why_not_without(image, replica_id):
            return (_changed(epoch, archive, replica_id, ReplicaState.CANDIDATE),)
    return ended(context, image, request, RequestStatus.DONE, "")


def since(image: Image, request: Request) -> int:
    return image.archive.changed_epoch


def foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Who would come and go, if all are alive."""
    archive = image.archive
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    goal = choose(archive.replicas.values(), wanted)
    lines = [f"{name} becomes a member" for name in goal if name not in archive.members()]
    return (*lines, *(f"{name} is one no longer" for name in archive.members() if name not in goal))


def on_ended(image: Image, request: Request) -> Iterable[AnyFact]:
    """Of the request whose turn it was."""
    if request.members:
        yield from _back_to_candidates(image.epoch + 1, image.archive, ())


def _back_to_candidates(
    epoch: int, archive: ArchiveImage, members: tuple[str, ...]
) -> Iterable[ReplicaChanged]:
    """Who joins, and is not among these."""
    joining = archive.of_state(ReplicaState.JOINING)
    return (
        _changed(epoch, archive, name, ReplicaState.CANDIDATE)
        for name in joining
        if name not in members
    )


def _changed(
    epoch: int, archive: ArchiveImage, replica_id: str, state: ReplicaState
) -> ReplicaChanged:
    replica: Replica = replace(archive.replicas[replica_id], state=state, since_epoch=epoch)
    return ReplicaChanged(replica)


RECONFIGURE_CATCH_UP: Final = Operation(
    kind=RequestKind.RECONFIGURE_CATCH_UP,
    command=ReconfigureCatchUp,
    ask=reconfigure_catch_up,
    priority=GLOBAL_PRIORITY,
    served=Served(missing=missing, step=step, since=since),
    needed=nobody,
    touched=no_sets,
    foreseen=foreseen,
    on_ended=on_ended,
)
