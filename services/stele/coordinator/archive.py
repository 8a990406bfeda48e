"""The archive beside the topology: who its members are to be.

It asks nothing of the nodes and holds up no other request. Who is alive the log does not say: the coordinator
asks the catch-up replicas themselves.
"""

from collections.abc import Iterable

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Patience
from stele.domain.archive.commands import ChooseMembers
from stele.domain.archive.divergence import unreliable
from stele.domain.archive.facts import Replica
from stele.domain.archive.limits import ARCHIVE_DEAD_AFTER_S, ARCHIVE_REPLICATION
from stele.domain.archive.majority import diverged
from stele.domain.archive.members import choose, fits, wanted_members
from stele.domain.names import ReplicaState, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.topology.operations.commands import ReconfigureCatchUp
from stele.runtime.answers.coordinator import WaitKind


def look_after_archive(desk: Desk) -> None:
    """Choose members for the request whose turn it is; without one, ask for one where members are dead or too
    few.
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
    """At first; and again when one of those who are still to come is dead or forgotten."""
    ids = (request.request_id,)
    pending = request.status is RequestStatus.PENDING
    if not pending and all(_is_there(desk, name) for name in request.members):
        return
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    chosen = _chosen(desk, wanted)
    if not chosen:
        desk.wait(WaitKind.ARCHIVE, "a catch-up replica that is up", requests=ids)
    elif chosen != request.members:
        as_of_epoch = desk.seen.image.archive.changed_epoch
        command = ChooseMembers(desk.seen.term, request.request_id, chosen, as_of_epoch)
        desk.submit(command, ids)


def _is_there(desk: Desk, replica_id: str) -> bool:
    """A member, or who may become one yet."""
    replica = desk.seen.image.archive.replicas.get(replica_id)
    if replica is None:
        return False
    return replica.state is ReplicaState.MEMBER or not _is_dead(desk, replica_id)


def _chosen(desk: Desk, wanted: dict[str, int]) -> tuple[str, ...]:
    """Members for a replication: those who are up before those who are members already. Nobody joins who is
    down.
    """
    archive = desk.seen.image.archive
    replicas = [archive.replicas[name] for name in sorted(archive.replicas)]
    found = [each for each in replicas if _may_be_chosen(desk, each)]
    down = {each.replica_id for each in found if not _is_up(desk, each.replica_id)}
    return choose(found, wanted, down | diverged(archive).keys() | unreliable(archive))


def _may_be_chosen(desk: Desk, replica: Replica) -> bool:
    match replica.state:
        case ReplicaState.MEMBER:
            return True
        case ReplicaState.JOINING:
            return not _is_dead(desk, replica.replica_id)
        case ReplicaState.CANDIDATE:
            return _is_up(desk, replica.replica_id)


def _wait_for_joining(desk: Desk, request: Request) -> None:
    """Say who is not heard that is to come next, and until when it is waited for."""
    image = desk.seen.image
    for name in image.archive.of_state(ReplicaState.JOINING):
        if not _is_up(desk, name):
            limit_s, then = _dead_after_s(desk), "another is chosen"
            since_s = desk.seen.now_s - _silent_for_s(desk, name)
            patience = Patience(since_s, limit_s, ARCHIVE_DEAD_AFTER_S.name, then)
            what = f"a sign of life of catch-up replica {name}, which joins"
            desk.wait(WaitKind.ARCHIVE, what, requests=(request.request_id,), patience=patience)


def _replace(desk: Desk) -> None:
    """Ask for other members: there are too few or too many of them, or some are dead, and others can take their
    place.
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
    """Also where members are never replaced: who joins is not waited for without end."""
    settings = desk.seen.image.features.settings
    return ARCHIVE_DEAD_AFTER_S.of(settings) or ARCHIVE_DEAD_AFTER_S.default


def _silent_for_s(desk: Desk, replica_id: str) -> float:
    """All of it while it was asked."""
    known = desk.seen.replicas.get(replica_id)
    if known is None:
        return 0.0
    last_s = known.since_s if known.heard_s is None else max(known.heard_s, known.since_s)
    return desk.seen.now_s - last_s
