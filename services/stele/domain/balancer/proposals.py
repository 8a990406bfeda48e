"""The balancer's next requests: moves, resizes, repairs, restores and cancellations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from stele.domain.balancer.colocation import Merge, bring_together, merges_of
from stele.domain.balancer.columns import Tablets, tablets_of
from stele.domain.balancer.load import NO_CONDITIONS, Conditions
from stele.domain.balancer.repairing import RepairAssignments, repairs, restores
from stele.domain.balancer.replication import Recount, Recounts, recounts
from stele.domain.balancer.resizing import Resize, loaded, sizing
from stele.domain.balancer.stuck import Lost, Stuck, cannot_be_drained, cannot_merge, lost_replicas
from stele.domain.base import Rejection
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    MoveTablets,
    RepairTablets,
    ResizeTable,
    RestoreTablets,
    SwitchBalancingOn,
)
from stele.domain.context import unknown_table, unknown_tablet
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove, TabletRepair, TabletRestore
from stele.domain.model.settings import READS, WRITES
from stele.domain.names import BALANCER
from stele.domain.planner.moves import BalanceLimits, ReplicaMove
from stele.domain.planner.offline import whole_plan
from stele.domain.planner.plan import plan_round, plan_to_fixed_point
from stele.domain.planner.planned import Kind, NodeVerdict, OfflinePlan
from stele.domain.planner.state import LEAVING
from stele.domain.planner.verdicts import verdicts
from stele.domain.ring.transition import WHOLE_RING
from stele.domain.rules.schema import all_off, gives_all_away, off_for
from stele.domain.tablets.copies import is_required
from stele.domain.tablets.maps import live_tables, row_of
from stele.domain.topology.live_copies import may_lack_writes
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.operations.tablet_migration import MAX_MOVES

# The effect of balancer switches, including those that expire, at a given time.


def switched_off(image: Image, now_ms: int) -> dict[str, str]:
    """Return the tables whose tablets the balancer does not move, by full name, with the reason."""
    schema, found = image.schema, dict[str, str]()
    # Switches are rare, and a search for those of each of thousands of tables takes long.
    maps = {t.placement for t in schema.tables.values() if t.balancing.off_since}
    keyspaces = {
        k.keyspace_id
        for k in schema.by_id.values()
        if k.balancing.off_since or schema.balancing.off_since
    }
    tables = (
        t for t in schema.tables.values() if t.placement in maps or t.keyspace_id in keyspaces
    )
    for table in sorted((t for t in tables if t.placement), key=lambda t: t.table_id):
        off = next(off_for(schema, table, now_ms), None)
        if off is not None:
            found[schema.full_name(table)] = off.words()
    return found


def expired(image: Image, now_ms: int) -> tuple[SwitchBalancingOn, ...]:
    """Return the commands that end switches whose time limit has passed.

    Each command names the epoch of its switch, so a later switch is not ended.
    """
    return tuple(
        SwitchBalancingOn(off.name, off.balancing.off_since)
        for off in all_off(image.schema)
        if off.expired(now_ms)
    )


def aborted(image: Image, now_ms: int) -> Iterator[Stuck]:
    """Yield the balancer's requests to cancel where it is now off and the grace period has passed.

    Moves that empty a node continue. Moves that a change of replication needs, or that are past
    their point of no return, continue as well.
    """
    for request in image.requests.unfinished():
        table = image.schema.tables.get(request.table_id)
        if request.actor != BALANCER or table is None or request.stays_in_place:
            continue
        moving = image.topology.of_request(request.request_id)
        if moving is None or moving.mark or is_required(image, table, request):
            continue
        if not OPERATIONS[moving.kind].states[moving.state].can_be_cancelled:
            continue
        for off in off_for(image.schema, table, now_ms):
            late = 0 < off.balancing.abort_at_ms <= now_ms
            if late and not gives_all_away(image, request.from_node):
                why = f"{off.words()} since epoch {off.balancing.off_since}, and its grace period is over"
                yield Stuck(request.request_id, why)
                break


# The planner's input for one round: the tablets as columns, and the restrictions of their moves.


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """The planner's input for one round.

    ``lost`` are replicas that cannot be rebuilt. ``forced`` are nodes for which an operator accepts
    that. ``merges`` are tables whose siblings are brought together, unless balancing is ``off`` for
    them; ``off`` maps each table to the reason.
    """

    tablets: Tablets
    lost: Lost
    forced: frozenset[str]
    merges: list[Merge]
    off: Mapping[str, str]


def planner_input(image: Image, conditions: Conditions) -> PlannerInput:
    waiting = _waiting(image) | conditions.failing
    tablets = tablets_of(image, conditions.down | conditions.avoided, waiting, conditions.loads)
    closed = conditions.shut() | waiting | image.requests.in_replacement()
    uncleaned = image.membership.uncleaned()
    forced = frozenset(r.node_id for r in image.requests.pending() if r.removes_node and r.force)
    lost = lost_replicas(image, tablets, forced)
    merges = merges_of(image)
    off = switched_off(image, conditions.now_ms)
    still = {
        merge.name: "sibling tablets of its table move to the same nodes, to be merged"
        for merge in merges
    }
    still.update(_locked(image))
    # A switch comes last, so that its reason is the one that is shown.
    still.update(off)
    # A copy of a lost replica could lack writes that were acknowledged.
    tablets.state.pinned = frozenset(lost)
    tablets.state.shut = tablets.numbers(closed | uncleaned)
    # While live replicas may lack acknowledged writes, no node deletes rows. That ends with the
    # removal of the dead nodes. It needs a place for their tablets, so it must not wait for
    # cleanups.
    if uncleaned and may_lack_writes(image):
        tablets.state.open_to_excluded = tablets.numbers(uncleaned - closed)
    tablets.state.still = {
        at: still[name] for at, name in enumerate(tablets.names) if name in still
    }
    return PlannerInput(tablets, lost, forced, merges, off)


def _locked(image: Image) -> dict[str, str]:
    """Return the tables whose whole map an open request locks, with the reason.

    Moves of their tablets would only wait, and take the streams of other tables meanwhile.
    """
    plans = (each for transition in image.topology.open() for each in transition.plans.items())
    locked = {name for name, plan in plans if plan.locks == (WHOLE_RING,)}
    return {
        image.schema.full_name(table): "a request about the whole table is under way"
        for table in image.schema.with_tablets()
        if table.placement in locked
    }


def waits_for(image: Image, conditions: Conditions) -> frozenset[str]:
    """Return the nodes that receive nothing now and may receive something later."""
    return conditions.shut() | image.membership.uncleaned()


def _waiting(image: Image) -> frozenset[str]:
    """Return the nodes to be removed that are not excluded yet.

    Until then they keep their tablets.
    """
    excluded = image.membership.excluded()
    return frozenset(
        request.node_id
        for request in image.requests.pending()
        if request.removes_node and not excluded.issuperset(request.dead_nodes)
    )


def plan_to_end(image: Image, conditions: Conditions = NO_CONDITIONS) -> OfflinePlan:
    """Return all moves until the load is even, if nothing else changes, and the evenness then."""
    tablets = planner_input(image, conditions).tablets

    def named(unit: int) -> list[tuple[str, str, int | str]]:
        name, tablet = tablets.tablet(unit)
        owner = image.schema.standing_map_owner(name)
        assert owner is not None, "a table that is balanced stands"
        return [(name.partition(".")[0], table.name, tablet) for table in live_tables(image, owner)]

    return whole_plan(tablets.state, tablets.names, named)


def shards_of(image: Image, table: str, tablet: int) -> dict[str, int]:
    """Return by node the shard that a tablet is read from. The tablet must exist."""
    data = image.schema.serving(table)
    assert data is not None, "it has verdicts"
    row = row_of(image.ring.placements[data.placement], tablet)
    return {node_id: row.shard_of(node_id) for node_id in row.reads}


def tablet_verdicts(
    image: Image,
    table: str,
    tablet: int,
    conditions: Conditions = NO_CONDITIONS,
) -> list[NodeVerdict] | Rejection:
    """Return for each replica of a tablet and each node a verdict: may it move there, and why."""
    tablets, owner = (
        planner_input(image, conditions).tablets,
        image.schema.standing_map_owner(table),
    )
    name = "" if owner is None else image.schema.full_name(owner)
    if name not in tablets.names:
        return unknown_table(table)
    at, count = tablets.names.index(name), tablets.tablets_of(name)
    if not 0 <= tablet < count:
        return unknown_tablet(table, count, tablet)
    return verdicts(tablets.state, tablets.names, tablets.first[at] + tablet)


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
    seen = planner_input(image, conditions)
    tablets, merges = seen.tablets, seen.merges
    counted = recounts(image, tablets, conditions, limits, seen.off.keys())
    moves = [_proposed(seen, move) for move in plan_round(tablets.state, tablets.names, limits)]
    if counted.moves:  # these change the balance that the planner saw
        leaving = {n.id for n in tablets.state.nodes if n.state in LEAVING}
        moves = [each for each in moves if each.move.from_node in leaving]
    if not counted.moves and not moves:  # merges have the lowest priority
        wanted = [merge for merge in merges if merge.name not in seen.off]
        together = bring_together(image.membership.nodes, tablets, wanted, limits)
        moves = [Proposed(move, Kind.MIGRATION) for move in together]
    uncounted = [each.move for each in moves]
    moves = [*_counted(counted), *moves]
    moving = frozenset(each.move.from_node for each in moves)
    stuck = list[Stuck]()
    goes_on = bool(counted.moves or tablets.state.busy.any() or conditions.paused)
    shut = waits_for(image, conditions) - image.requests.going()
    # A pending change of replicas may still make room. No request is stuck until then.
    if not (counted.deviates and goes_on):
        found = cannot_be_drained(image, tablets, seen.lost, moving, room_may_come=bool(shut))
        stuck = [each for each in found if each.waits]
        stuck += [each for each in found if not each.waits][-1:]
    stuck += counted.stuck
    calm = not (moves or shut or tablets.state.busy.any())
    stuck += cannot_merge(image, merges, seen.lost, calm=calm)
    full = conditions.loads.full()
    sized = sizing(image, loaded(tablets.stats), conditions.down, seen.off.keys(), full)
    resized = {resize.table for resize in sized.resizes}  # the tablets get other numbers
    # Resizes are sent before moves, so a move of the same table would name an old number.
    moves = [each for each in moves if each.move.table not in resized]
    # Repairs and restores get the streams that moves leave. ``recounts`` has reserved its own
    # already.
    assigned = RepairAssignments(
        tablets, conditions, limits, [m for m in uncounted if m.table not in resized]
    )
    restored = restores(image, tablets, conditions, assigned, resized)
    return Proposal(
        switched_on=expired(image, conditions.now_ms),
        moves=tuple(moves),
        resizes=sized.resizes,
        stuck=tuple(stuck),
        revoked=(*sized.revoked, *aborted(image, conditions.now_ms)),
        repairs=tuple(repairs(image, tablets, conditions, assigned, resized)),
        restores=tuple(restored),
    )


class Forecast(NamedTuple):
    """All moves until the load is even, and the requests that the balancer will end."""

    moves: tuple[TabletMove, ...]
    stuck: tuple[Stuck, ...]


def forecast(image: Image, conditions: Conditions) -> Forecast:
    """Return what the balancer will do if no other change happens.

    ``proposal`` ends the requests in ``stuck`` once it has reached that state. While numbers of
    replicas change, no node counts as one that keeps tablets.
    """
    # Streams do not limit a forecast: only the rules of placement decide.
    seen = planner_input(image, conditions)
    limits = BalanceLimits(reads=MAX_MOVES, writes=MAX_MOVES)
    tablets = seen.tablets
    counted = recounts(image, tablets, conditions, limits, seen.off.keys())
    planned = plan_to_fixed_point(tablets.state, tablets.names).moves
    moves = tuple(_proposed(seen, move).move for move in planned)
    stuck = [*counted.stuck, *cannot_merge(image, seen.merges, seen.lost, calm=False)]
    if not counted.deviates:
        closed = waits_for(image, conditions) - image.requests.going()
        stuck += cannot_be_drained(
            image, tablets, seen.lost, frozenset(), room_may_come=bool(closed)
        )
    return Forecast(moves, tuple(stuck))


def _counted(recounted: Recounts) -> Iterator[Proposed]:
    for move in recounted.moves:
        if move.from_node and move.to_node:
            yield Proposed(move, Kind.MIGRATION)
        else:
            yield Proposed(move, Recount.DELETE if move.from_node else Recount.ADD)


def _proposed(seen: PlannerInput, move: ReplicaMove) -> Proposed:
    tablets = seen.tablets
    table, tablet = tablets.tablet(move.unit)
    source, target = tablets.node_ids[move.source[0]], tablets.node_ids[move.target[0]]
    asked = TabletMove(
        table=table,
        tablet=tablet,
        of=tablets.tablets_of(table),
        from_node=source,
        to_node=target,
        to_shard=move.target[1],
        force=source in seen.forced or move.target[0] in tablets.state.open_to_excluded,
        why=move.reason,
    )
    return Proposed(asked, move.kind)
