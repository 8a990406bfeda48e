"""Choice of the archive's members, beside the topology.

It asks nothing of the nodes and blocks no other request. The log does not contain liveness, so the
coordinator asks the catch-up replicas themselves.
"""

from collections.abc import Iterable

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience
from stele.domain.archive.decide import unreliable
from stele.domain.archive.model import (
    ARCHIVE_DEAD_AFTER_S,
    ARCHIVE_REPLICATION,
    ChooseMembers,
    Replica,
    diverged,
)
from stele.domain.archive.retention import choose, fits, wanted_members
from stele.domain.names import ReplicaState, RequestStatus
from stele.domain.requests.model import Request
from stele.domain.topology.operations.commands import ReconfigureCatchUp
from stele.domain.topology.operations.reconfigure_catch_up import may_be_chosen
from stele.domain.topology.waits import WaitKind


def look_after_archive(desk: Desk) -> None:
    """Choose members for the request whose turn it is.

    Without a request, ask for one if members are dead or there are too few or too many.
    """
    image = desk.seen.image
    if not image.archive.replicas:
        return
    turn = next(iter(image.requests.reconfigurations()), None)
    if turn is not None:
        _choose_for(desk, turn)
        _wait_for_joining(desk, turn)
    else:
        _replace(desk)


def _choose_for(desk: Desk, request: Request) -> None:
    """Choose at first, and again if a chosen replica that has yet to join is dead or forgotten."""
    ids = (request.request_id,)
    pending = request.status is RequestStatus.PENDING
    if not pending and all(_is_there(desk, name) for name in request.members):
        return
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    chosen = _chosen(desk, wanted, request)
    if not chosen:
        desk.wait(WaitKind.ARCHIVE, "a catch-up replica that is up", requests=ids)
    elif pending and _is_short(desk, request, chosen):
        retired = [
            name for name in desk.seen.image.archive.members() if name not in request.members
        ]
        what = f"a catch-up replica that is free and up, in place of {', '.join(retired)}"
        desk.wait(WaitKind.ARCHIVE, what, requests=ids)
    elif pending or chosen != request.members:
        as_of_epoch = desk.seen.image.archive.changed_epoch
        # The log refuses the choice if a replica has changed since this epoch.
        command = ChooseMembers(desk.seen.term, request.request_id, chosen, as_of_epoch)
        desk.submit(command, ids)


def _is_there(desk: Desk, replica_id: str) -> bool:
    """Return whether the replica is a member or may still become one."""
    replica = desk.seen.image.archive.replicas.get(replica_id)
    if replica is None:
        return False
    return replica.state is ReplicaState.MEMBER or not _is_dead(desk, replica_id)


def _is_short(desk: Desk, request: Request, chosen: tuple[str, ...]) -> bool:
    """Return whether a retired member has no replacement yet, so that fewer members would hold the
    archive.
    """
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    needed = min(sum(wanted.values()), len(desk.seen.image.archive.members()))
    return bool(request.members) and len(chosen) < needed


def _chosen(desk: Desk, wanted: dict[str, int], request: Request | None = None) -> tuple[str, ...]:
    """Choose members for a replication: replicas that are up come first, then present members.

    A replica that is down does not join. A running request whose replacement died keeps a member
    that it was to remove only if no other replica is free.
    """
    archive = desk.seen.image.archive
    replicas = [archive.replicas[name] for name in sorted(archive.replicas)]
    found = [
        each
        for each in replicas
        if _may_be_chosen(desk, each)
        and (request is None or may_be_chosen(archive, request, each.replica_id))
    ]
    last = {each.replica_id for each in found if not _is_up(desk, each.replica_id)}
    # A diverged replica is the last choice, because its archive cannot be trusted.
    last |= diverged(archive).keys() | unreliable(archive)
    if request is not None and request.status is not RequestStatus.PENDING:
        last |= {name for name in archive.members() if name not in request.members}
    return choose(found, wanted, last)


def _may_be_chosen(desk: Desk, replica: Replica) -> bool:
    match replica.state:
        case ReplicaState.MEMBER:
            return True
        case ReplicaState.JOINING:
            return not _is_dead(desk, replica.replica_id)
        case ReplicaState.CANDIDATE:
            return _is_up(desk, replica.replica_id)


def _wait_for_joining(desk: Desk, request: Request) -> None:
    """Add a wait for each joining replica that does not answer, with its time limit."""
    image = desk.seen.image
    for name in image.archive.of_state(ReplicaState.JOINING):
        if not _is_up(desk, name):
            limit_s, then = _dead_after_s(desk), "another is chosen"
            since_s = desk.seen.now_s - _silent_for_s(desk, name)
            patience = Patience(since_s, limit_s, ARCHIVE_DEAD_AFTER_S.name, then)
            what = f"a sign of life of catch-up replica {name}, which joins"
            desk.wait(WaitKind.ARCHIVE, what, requests=(request.request_id,), patience=patience)


def _replace(desk: Desk) -> None:
    """Ask for other members if there are too few or too many, or some are dead or unreliable.

    The request is not sent while no other replica can take their place.
    """
    archive = desk.seen.image.archive
    wanted, members = wanted_members(desk.seen.image), archive.members()
    chosen = _chosen(desk, wanted)
    limit_s = ARCHIVE_DEAD_AFTER_S.of(desk.seen.image.features.settings)
    bad = {name: "has diverged again" for name in members if name in unreliable(archive)}
    silent = f"has been silent for more than {limit_s} s"
    bad |= {name: silent for name in members if limit_s and _is_dead(desk, name)}
    replaced = [name for name in bad if name not in chosen]
    why = ""
    if replaced:
        why = "; ".join(f"{name} {bad[name]}" for name in replaced)
    elif not fits(_rows(desk, chosen), _rows(desk, members), wanted):
        asked = ARCHIVE_REPLICATION.text(wanted)
        why = f"{len(members)} are members, {asked} are asked for, and {len(chosen)} can be"
    if why and chosen:
        desk.submit(ReconfigureCatchUp(as_of_epoch=archive.changed_epoch), why=why)
    for name in bad:
        if name in chosen:
            why = "is dead" if bad[name] == silent else bad[name]
            what = f"a catch-up replica that is free and up, in place of {name}, which {why}"
            desk.wait(WaitKind.ARCHIVE, what)


def _rows(desk: Desk, names: Iterable[str]) -> list[Replica]:
    return [desk.seen.image.archive.replicas[name] for name in names]


def _is_up(desk: Desk, replica_id: str) -> bool:
    known = desk.seen.replicas.get(replica_id)
    if known is None or known.heard_s is None:
        return False
    return desk.seen.now_s - known.heard_s <= desk.limits.replica_down_after_s


def _is_dead(desk: Desk, replica_id: str) -> bool:
    return _silent_for_s(desk, replica_id) > _dead_after_s(desk)


def _dead_after_s(desk: Desk) -> int:
    """Return the limit, in seconds, also if members are never replaced: a joining replica must not
    block for ever.
    """
    settings = desk.seen.image.features.settings
    return ARCHIVE_DEAD_AFTER_S.of(settings) or ARCHIVE_DEAD_AFTER_S.default


def _silent_for_s(desk: Desk, replica_id: str) -> float:
    """Return the seconds without an answer, counted only while it was probed."""
    known = desk.seen.replicas.get(replica_id)
    if known is None:
        return 0.0
    last_s = known.since_s if known.heard_s is None else max(known.heard_s, known.since_s)
    return desk.seen.now_s - last_s
