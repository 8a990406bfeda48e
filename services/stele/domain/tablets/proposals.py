"""The balancer's next requests: moves, resizes, repairs, restores and cancellations."""

from collections.abc import Iterator, Set
from typing import NamedTuple

import msgspec

from stele.domain.balance.moves import BalanceLimits, ReplicaMove
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
from stele.domain.tablets.look import look, waits_for
from stele.domain.tablets.repairing import RepairAssignments, repairs
from stele.domain.tablets.replication import Recount, Recounts, recounts
from stele.domain.tablets.resizing import Resize, loaded, sizing
from stele.domain.tablets.restoring import restores
from stele.domain.tablets.stuck import Stuck, cannot_be_drained, cannot_merge
from stele.domain.tablets.switched import aborted, expired
from stele.domain.topology.operations.commands import TabletMove, TabletRepair, TabletRestore
from stele.domain.topology.operations.tablet_migration import MAX_MOVES


class Proposed(msgspec.Struct, frozen=True):
    """A move and its kind."""

    move: TabletMove
    kind: Kind | Recount


class Proposal(msgspec.Struct, frozen=True):
    """The changes to request now.

    It also holds requests to cancel, because they can never complete (``stuck``, unless they wait)
    or are no longer wanted (``revoked``), and switches whose time limit has passed.
    """

    switched_on: tuple[SwitchBalancingOn, ...] = ()
    moves: tuple[Proposed, ...] = ()
    resizes: tuple[Resize, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    revoked: tuple[Stuck, ...] = ()
    repairs: tuple[TabletRepair, ...] = ()
    restores: tuple[TabletRestore, ...] = ()

    def commands(self) -> Iterator[tuple[AnyCommand, str]]:
        """Yield the commands to send, in this order, each with its reason."""
        for switch in self.switched_on:
            yield switch, "its time limit has passed"
        for ended in (*self.stuck, *self.revoked):
            if not ended.waits:
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
    """Return what one round begins in addition to the work under way.

    Requests under way count in the state, so nothing is requested twice.

    Some nodes receive nothing: those that are down, have rows to delete or full disks, and those to
    which moves have just failed. This holds even for tablets of leaving nodes; the planner alone
    would let these wait. While such nodes exist among those that stay, a request is stuck only if
    they could not take its tablets either. One request ends at a time, the newest. When it ends,
    its node may take tablets of the others.
    """
    settings = image.features.settings
    limits = BalanceLimits(
        reads=READS.of(settings), writes=WRITES.of(settings), batch=WRITES.of(settings)
    )
    seen = look(image, conditions)
    what, merges = seen.what, seen.merges
    counted = recounts(image, what, conditions, limits, seen.off.keys())
    moves = [_told(what, move, seen.forced) for move in plan_round(what.state, what.names, limits)]
    if counted.moves:  # these change the balance that the planner saw
        leaving = {n.id for n in what.state.nodes if n.state in LEAVING}
        moves = [each for each in moves if each.move.from_node in leaving]
    if not counted.moves and not moves:  # merges have the lowest priority
        wanted = [merge for merge in merges if merge.name not in seen.off]
        together = bring_together(image.membership.nodes, what, wanted, limits)
        moves = [Proposed(move, Kind.MIGRATION) for move in together]
    uncounted = [each.move for each in moves]
    moves = [*_counted(counted), *moves]
    moving = frozenset(each.move.from_node for each in moves)
    stuck = list[Stuck]()
    goes_on = bool(counted.moves or what.state.busy.any() or conditions.paused)
    shut = waits_for(image, conditions) - image.requests.going()
    # A pending change of replicas may still make room. No request is stuck until then.
    if not (counted.amiss and goes_on):
        found = cannot_be_drained(image, what, seen.lost, moving, room_may_come=bool(shut))
        stuck = [each for each in found if each.waits]
        stuck += [each for each in found if not each.waits][-1:]
    stuck += counted.stuck
    calm = not (moves or shut or what.state.busy.any())
    stuck += cannot_merge(image, merges, seen.lost, calm=calm)
    full = conditions.loads.full()
    sized = sizing(image, loaded(what.stats), conditions.down, seen.off.keys(), full)
    resized = {resize.table for resize in sized.resizes}  # the tablets get other numbers
    # Resizes are sent before moves, so a move of the same table would name an old number.
    moves = [each for each in moves if each.move.table not in resized]
    # Repairs and restores get the streams that moves leave. ``recounts`` has reserved its own
    # already.
    assigned = RepairAssignments(
        what, conditions, limits, [m for m in uncounted if m.table not in resized]
    )
    restored = restores(image, what, conditions, assigned, resized)
    return Proposal(
        switched_on=expired(image, conditions.now_ms),
        moves=tuple(moves),
        resizes=sized.resizes,
        stuck=tuple(stuck),
        revoked=(*sized.revoked, *aborted(image, conditions.now_ms)),
        repairs=tuple(repairs(image, what, conditions, assigned, resized)),
        restores=tuple(restored),
    )


class Forecast(NamedTuple):
    """All moves until the load is even, and the requests whose nodes would keep tablets."""

    moves: tuple[TabletMove, ...]
    stuck: tuple[Stuck, ...]


def forecast(image: Image, conditions: Conditions) -> Forecast:
    """Return what the balancer will do if no other change happens.

    ``proposal`` ends the requests in ``stuck`` once it has reached that state. None is stuck while
    numbers of replicas change.
    """
    # Streams do not limit a forecast: only the rules of placement decide.
    seen, limits = look(image, conditions), BalanceLimits(reads=MAX_MOVES, writes=MAX_MOVES)
    what = seen.what
    amiss = recounts(image, what, conditions, limits, seen.off.keys()).amiss
    planned = plan_to_fixed_point(what.state, what.names).moves
    moves = tuple(_told(what, move, seen.forced).move for move in planned)
    if amiss:
        return Forecast(moves, ())
    shut = waits_for(image, conditions) - image.requests.going()
    stuck = cannot_be_drained(image, what, seen.lost, frozenset(), room_may_come=bool(shut))
    return Forecast(moves, tuple(stuck))


def _counted(recounted: Recounts) -> Iterator[Proposed]:
    for move in recounted.moves:
        if move.from_node and move.to_node:
            yield Proposed(move, Kind.MIGRATION)
        else:
            yield Proposed(move, Recount.DELETE if move.from_node else Recount.ADD)


def _told(what: Tablets, move: ReplicaMove, forced: Set[str]) -> Proposed:
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
