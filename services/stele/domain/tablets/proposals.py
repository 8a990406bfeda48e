"""What the balancer asks for next: moves of tablets, other numbers of them, and the end of what cannot be."""

from collections.abc import Iterator, Set

import msgspec

from stele.domain.balance.moves import Limits, Move
from stele.domain.balance.plan import plan_round, plan_to_fixed_point
from stele.domain.balance.planned import Kind
from stele.domain.balance.state import LEAVING
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    MoveTablets,
    RepairTablets,
    ResizeTable,
    RestoreTablets,
    SwitchBalancingOn,
)
from stele.domain.image import Image
from stele.domain.tablets.colocation import bring_together
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.conditions import NO_CONDITIONS, Conditions
from stele.domain.tablets.limits import READS, WRITES
from stele.domain.tablets.look import look
from stele.domain.tablets.repairing import Desk, repairs
from stele.domain.tablets.replication import Recount, Recounts, recounts
from stele.domain.tablets.resizing import Resize, loaded, sizing
from stele.domain.tablets.restoring import restores
from stele.domain.tablets.stuck import Stuck, cannot_be_drained, cannot_merge
from stele.domain.tablets.switched import aborted, expired
from stele.domain.topology.operations.commands import TabletMove, TabletRepair, TabletRestore
from stele.domain.topology.operations.tablet_migration import MAX_MOVES


class Proposed(msgspec.Struct, frozen=True):
    """A move, with what for, and what it would be."""

    move: TabletMove
    kind: Kind | Recount


class Proposal(msgspec.Struct, frozen=True):
    """What to begin now; requests to cancel, since they can never be, or are not wanted any more; and switches
    whose time has passed.
    """

    switched_on: tuple[SwitchBalancingOn, ...] = ()
    moves: tuple[Proposed, ...] = ()
    resizes: tuple[Resize, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    revoked: tuple[Stuck, ...] = ()
    repairs: tuple[TabletRepair, ...] = ()
    restores: tuple[TabletRestore, ...] = ()

    def commands(self) -> Iterator[tuple[AnyCommand, str]]:
        """What to ask the log for, in this order, each with why."""
        for switch in self.switched_on:
            yield switch, "its time limit has passed"
        for ended in (*self.stuck, *self.revoked):
            yield Cancel(ended.request_id), ended.why
        for resize in self.resizes:
            yield ResizeTable(resize.table, resize.tablets), resize.why
        moves = tuple(each.move for each in self.moves[:MAX_MOVES])
        if moves:
            yield MoveTablets(moves), f"{len(moves)} moves"
        if self.restores:
            yield RestoreTablets(self.restores), f"{len(self.restores)} restores"
        if self.repairs:
            yield RepairTablets(self.repairs), f"{len(self.repairs)} repairs"


def proposal(image: Image, conditions: Conditions = NO_CONDITIONS) -> Proposal:
    """What one round would begin beside what is under way; nothing twice, since what is asked for counts too.

    Nodes that are down, where moves have failed just now, or whose disks are full get nothing, not even of
    those that leave (the planner by itself would let these wait). While there are any nothing is said to be
    stuck; else one request at a time, the newest: when it ends its node may take what the others have.
    """
    settings = image.features.settings
    limits = Limits(reads=READS.of(settings), writes=WRITES.of(settings), batch=WRITES.of(settings))
    seen = look(image, conditions)
    what, merges = seen.what, seen.merges
    counted = recounts(image, what, conditions, limits, seen.off.keys())
    moves = [_told(what, move, seen.forced) for move in plan_round(what.state, what.names, limits)]
    if counted.moves:  # what is even now is not then
        leaving = {n.id for n in what.state.nodes if n.state in LEAVING}
        moves = [each for each in moves if each.move.from_node in leaving]
    if not counted.moves and not moves:  # merging can wait
        wanted = [merge for merge in merges if merge.name not in seen.off]
        together = bring_together(image.membership.nodes, what, wanted, limits)
        moves = [Proposed(move, Kind.MIGRATION) for move in together]
    uncounted = [each.move for each in moves]
    moves = [*_counted(counted), *moves]
    moving = frozenset(each.move.from_node for each in moves)
    stuck = list[Stuck]()
    goes_on = bool(counted.moves or what.state.busy.any() or conditions.paused)
    if not conditions.shut() and not (counted.amiss and goes_on):
        stuck = cannot_be_drained(image, what, seen.lost, moving)[-1:]
    stuck += counted.stuck
    calm = not (moves or conditions.shut() or what.state.busy.any())
    stuck += cannot_merge(image, merges, seen.lost, calm=calm)
    sized = sizing(image, loaded(what.stats), conditions.down, seen.off.keys())
    resized = {resize.table for resize in sized.resizes}  # its tablets have other numbers then
    moves = [each for each in moves if each.move.table not in resized]
    desk = Desk(what, conditions, limits, [m for m in uncounted if m.table not in resized])
    restored = restores(image, what, conditions, desk, resized)
    return Proposal(
        switched_on=expired(image, conditions.now_ms),
        moves=tuple(moves),
        resizes=sized.resizes,
        stuck=tuple(stuck),
        revoked=(*sized.revoked, *aborted(image, conditions.now_ms)),
        repairs=tuple(repairs(image, what, conditions, desk, resized)),
        restores=tuple(restored),
    )


def never_drained(image: Image, conditions: Conditions) -> list[Stuck]:
    """Requests whose nodes would keep tablets, were the balancer to move all that it can and nothing else to
    happen: it ends them, as ``proposal`` says once it has come to that. None while some node takes nothing for
    now, or numbers of replicas change.
    """
    if conditions.shut():
        return []
    seen, limits = look(image, conditions), Limits(reads=MAX_MOVES, writes=MAX_MOVES)
    if recounts(image, seen.what, conditions, limits, seen.off.keys()).amiss:
        return []
    plan_to_fixed_point(seen.what.state, seen.what.names)
    return cannot_be_drained(image, seen.what, seen.lost, frozenset())


def _counted(recounted: Recounts) -> Iterator[Proposed]:
    for move in recounted.moves:
        if move.from_node and move.to_node:
            yield Proposed(move, Kind.MIGRATION)
        else:
            yield Proposed(move, Recount.DELETE if move.from_node else Recount.ADD)


def _told(what: Tablets, move: Move, forced: Set[str]) -> Proposed:
    table, tablet = what.tablet(move.unit)
    source, target = what.node_ids[move.source[0]], what.node_ids[move.target[0]]
    asked = TabletMove(
        table=table,
        tablet=tablet,
        of=what.tablets_of(table),
        from_node=source,
        to_node=target,
        to_shard=move.target[1],
        force=source in forced,
        why=move.reason,
    )
    return Proposed(asked, move.kind)
