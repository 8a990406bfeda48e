"""Catch-up replicas that come and go, decided."""

from stele.domain.archive.commands import AnnounceReplica, ForgetReplica
from stele.domain.archive.decide import forgotten_snapshots, unknown_replica
from stele.domain.archive.facts import Replica, ReplicaChanged, ReplicaForgotten
from stele.domain.archive.limits import MAX_REPLICAS
from stele.domain.archive.members import has_room, why_not_without
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name
from stele.domain.names import ReplicaState

MAX_ADDRESS_CHARS = 256


def announce_replica(context: Context, command: AnnounceReplica) -> Decision:
    """A new row, or the same in another place. With another folder it has nothing of what it announced.

    While nothing was deleted from the log, the first ones become members at once, as many as the setting asks
    for: the log itself has all that they need, so there is nothing to wait for. So does the first of all.
    """
    image, archive = context.image, context.image.archive
    refused = _check_replica(command)
    if refused is not None:
        return refused
    known = archive.replicas.get(command.replica_id)
    if known is None and len(archive.replicas) >= MAX_REPLICAS:
        return Rejection(
            "too_many_replicas",
            f"{len(archive.replicas)} catch-up replicas are known, which is the limit.",
            "Forget those that never come back: `stele catch-up forget ID`. Let each process keep its id.",
        )
    state = ReplicaState.CANDIDATE if known is None else known.state
    if state is ReplicaState.CANDIDATE and has_room(image, command.replica_id, command.dc):
        state = ReplicaState.MEMBER
    stays = known is not None and known.state is state
    replica = Replica(
        replica_id=command.replica_id,
        dc=command.dc,
        rack=command.rack,
        address=command.address,
        state=state,
        since_epoch=known.since_epoch if known is not None and stays else context.epoch,
        folder_id=command.folder_id,
    )
    if known == replica:
        return ()
    lost = known is not None and known.folder_id != replica.folder_id
    forgotten = forgotten_snapshots(archive, command.replica_id) if lost else ()
    return ReplicaChanged(replica), *forgotten


def forget_replica(context: Context, command: ForgetReplica) -> Decision:
    """A member goes only where the others do without it, or by force."""
    archive = context.image.archive
    if command.replica_id not in archive.replicas:
        return unknown_replica(command.replica_id)
    why = why_not_without(context.image, command.replica_id)
    if why and not command.force:
        return Rejection(
            "member_needed",
            f"Replica '{command.replica_id}' is a member: {why}.",
            "Start others and `stele catch-up reconfigure`; or if it is gone for good, say `force`: what only"
            " it has is given up.",
        )
    return (ReplicaForgotten(command.replica_id, unsafe=bool(why)),)


def _check_replica(command: AnnounceReplica) -> Rejection | None:
    refused = (
        bad_name("catch-up replica", command.replica_id)
        or bad_name("dc", command.dc)
        or bad_name("rack", command.rack)
        or (bad_name("folder", command.folder_id) if command.folder_id else None)
    )
    if refused is not None:
        return refused
    scheme, _, place = command.address.partition("://")
    plain = command.address.isprintable() and " " not in command.address
    if scheme in ("http", "https") and place and plain and len(place) <= MAX_ADDRESS_CHARS:
        return None
    return Rejection(
        "bad_address",
        f"'{command.address[:80]}' is no address of a catch-up replica.",
        "Give its URL, such as http://10.0.0.7:8086.",
    )
