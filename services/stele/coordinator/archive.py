"""Choice of the archive's members, beside the topology.

It asks nothing of the nodes and blocks no other request. The log does not contain liveness, so the
coordinator asks the catch-up replicas themselves.
"""

from collections.abc import Iterable

from stele.coordinator.actions import Action, CommandAction
from stele.coordinator.model import Patience, StepContext, Wait
from stele.domain.model.archive import (
    ARCHIVE_DEAD_AFTER_S,
    ARCHIVE_REPLICATION,
    ChooseMembers,
    Replica,
    diverged,
)
from stele.domain.model.operations import ReconfigureCatchUp
from stele.domain.model.requests import Request
from stele.domain.names import ReplicaState, RequestStatus, WaitKind
from stele.domain.rules.archive import unreliable
from stele.domain.rules.retention import choose, fits, wanted_members
from stele.domain.topology.operations.reconfigure_catch_up import may_be_chosen


def keep_archive(context: StepContext) -> list[Action]:
    """Choose members for the request whose turn it is.

    Without a request, ask for one if members are dead or there are too few or too many.
    """
    image = context.image
    if not image.archive.replicas:
        return []
    turn = next(iter(image.requests.reconfigurations()), None)
    if turn is None:
        return _replace(context)
    return [*_choose_for(context, turn), *_wait_for_joining(context, turn)]


def _choose_for(context: StepContext, request: Request) -> list[Action]:
    """Choose at first, and again if a chosen replica that has yet to join is dead or forgotten."""
    ids = (request.request_id,)
    pending = request.status is RequestStatus.PENDING
    if not pending and all(_is_there(context, name) for name in request.members):
        return []
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    chosen = _chosen(context, wanted, request)
    if not chosen:
        return [Wait(WaitKind.ARCHIVE, "a catch-up replica that is up", request_ids=ids)]
    if pending and _is_short(context, request, chosen):
        members = context.image.archive.members()
        retired = [name for name in members if name not in request.members]
        what = f"a catch-up replica that is free and up, in place of {', '.join(retired)}"
        return [Wait(WaitKind.ARCHIVE, what, request_ids=ids)]
    if pending or chosen != request.members:
        as_of_epoch = context.image.archive.changed_epoch
        # The log refuses the choice if a replica has changed since this epoch.
        command = ChooseMembers(context.term, request.request_id, chosen, as_of_epoch)
        return [CommandAction(command, ids)]
    return []


def _is_there(context: StepContext, replica_id: str) -> bool:
    """Return whether the replica is a member or may still become one."""
    replica = context.image.archive.replicas.get(replica_id)
    if replica is None:
        return False
    return replica.state is ReplicaState.MEMBER or not _is_dead(context, replica_id)


def _is_short(context: StepContext, request: Request, chosen: tuple[str, ...]) -> bool:
    """Return whether a retired member has no replacement yet, so that fewer members would hold the
    archive.
    """
    wanted = ARCHIVE_REPLICATION.parsed(request.archive_replication) or {}
    needed = min(sum(wanted.values()), len(context.image.archive.members()))
    return bool(request.members) and len(chosen) < needed


def _chosen(
    context: StepContext, wanted: dict[str, int], request: Request | None = None
) -> tuple[str, ...]:
    """Choose members for a replication: replicas that are up come first, then present members.

    A replica that is down does not join. A running request whose replacement died keeps a member
    that it was to remove only if no other replica is free.
    """
    archive = context.image.archive
    replicas = [archive.replicas[name] for name in sorted(archive.replicas)]
    found = [
        each
        for each in replicas
        if _may_be_chosen(context, each)
        and (request is None or may_be_chosen(archive, request, each.replica_id))
    ]
    last = {each.replica_id for each in found if not _is_up(context, each.replica_id)}
    # A diverged replica is the last choice, because its archive cannot be trusted.
    last |= diverged(archive).keys() | unreliable(archive)
    if request is not None and request.status is not RequestStatus.PENDING:
        last |= {name for name in archive.members() if name not in request.members}
    return choose(found, wanted, last)


def _may_be_chosen(context: StepContext, replica: Replica) -> bool:
    match replica.state:
        case ReplicaState.MEMBER:
            return True
        case ReplicaState.JOINING:
            return not _is_dead(context, replica.replica_id)
        case ReplicaState.CANDIDATE:
            return _is_up(context, replica.replica_id)


def _wait_for_joining(context: StepContext, request: Request) -> list[Wait]:
    """Return a wait for each joining replica that does not answer, with its time limit."""
    waits = list[Wait]()
    for name in context.image.archive.of_state(ReplicaState.JOINING):
        if not _is_up(context, name):
            limit_s, then = _dead_after_s(context), "another is chosen"
            since_s = context.seen.now_s - _silent_for_s(context, name)
            patience = Patience(since_s, limit_s, ARCHIVE_DEAD_AFTER_S.name, then)
            what = f"a sign of life of catch-up replica {name}, which joins"
            waits.append(Wait(WaitKind.ARCHIVE, what, (), (request.request_id,), patience))
    return waits


def _replace(context: StepContext) -> list[Action]:
    """Ask for other members if there are too few or too many, or some are dead or unreliable.

    The request is not sent while no other replica can take their place.
    """
    archive, actions = context.image.archive, list[Action]()
    wanted, members = wanted_members(context.image), archive.members()
    chosen = _chosen(context, wanted)
    limit_s = ARCHIVE_DEAD_AFTER_S.of(context.image.features.settings)
    bad = {name: "has diverged again" for name in members if name in unreliable(archive)}
    silent = f"has been silent for more than {limit_s} s"
    bad |= {name: silent for name in members if limit_s and _is_dead(context, name)}
    replaced = [name for name in bad if name not in chosen]
    why = ""
    if replaced:
        why = "; ".join(f"{name} {bad[name]}" for name in replaced)
    elif not fits(_rows(context, chosen), _rows(context, members), wanted):
        asked = ARCHIVE_REPLICATION.text(wanted)
        why = f"{len(members)} are members, {asked} are asked for, and {len(chosen)} can be"
    if why and chosen:
        command = ReconfigureCatchUp(as_of_epoch=archive.changed_epoch)
        actions.append(CommandAction(command, why=why))
    for name in bad:
        if name in chosen:
            why = "is dead" if bad[name] == silent else bad[name]
            what = f"a catch-up replica that is free and up, in place of {name}, which {why}"
            actions.append(Wait(WaitKind.ARCHIVE, what))
    return actions


def _rows(context: StepContext, names: Iterable[str]) -> list[Replica]:
    return [context.image.archive.replicas[name] for name in names]


def _is_up(context: StepContext, replica_id: str) -> bool:
    known = context.seen.replicas.get(replica_id)
    if known is None or known.answered_s is None:
        return False
    return context.seen.now_s - known.answered_s <= context.limits.replica_down_after_s


def _is_dead(context: StepContext, replica_id: str) -> bool:
    return _silent_for_s(context, replica_id) > _dead_after_s(context)


def _dead_after_s(context: StepContext) -> int:
    """Return the limit, in seconds, also if members are never replaced: a joining replica must not
    block for ever.
    """
    settings = context.image.features.settings
    return ARCHIVE_DEAD_AFTER_S.of(settings) or ARCHIVE_DEAD_AFTER_S.default


def _silent_for_s(context: StepContext, replica_id: str) -> float:
    """Return the seconds without an answer, counted only while it was probed."""
    known = context.seen.replicas.get(replica_id)
    if known is None:
        return 0.0
    last_s = known.since_s if known.answered_s is None else max(known.answered_s, known.since_s)
    return context.seen.now_s - last_s
