"""The balancer's input for one look: the tablets as columns, and what restricts their moves."""

from collections.abc import Mapping
from dataclasses import dataclass

from stele.domain.balance.offline import whole_plan
from stele.domain.balance.planned import NodeVerdict, OfflinePlan
from stele.domain.balance.verdicts import verdicts
from stele.domain.base import Rejection
from stele.domain.context import unknown_table, unknown_tablet
from stele.domain.image import Image
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import WHOLE_RING
from stele.domain.tablets.colocation import Merge, merges_of
from stele.domain.tablets.columns import Tablets, tablets_of
from stele.domain.tablets.conditions import NO_CONDITIONS, Conditions
from stele.domain.tablets.groups import standing
from stele.domain.tablets.maps import row_of
from stele.domain.tablets.stuck import Lost, lost_replicas
from stele.domain.tablets.switched import standing_still


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """The input of one look.

    ``lost`` are replicas that cannot be rebuilt. ``forced`` are nodes for which an operator accepts
    that. ``merges`` are tables whose siblings are brought together, unless balancing is ``off`` for
    them; ``off`` maps each table to the reason.
    """

    what: Tablets
    lost: Lost
    forced: frozenset[str]
    merges: list[Merge]
    off: Mapping[str, str]


def look(image: Image, conditions: Conditions) -> PlannerInput:
    waiting = _waiting(image) | conditions.failing
    what = tablets_of(image, conditions.down | conditions.avoided, waiting, conditions.loads)
    shut = waits_for(image, conditions) | waiting | image.requests.in_replacement()
    forced = frozenset(r.node_id for r in image.requests.pending() if r.removes_node and r.force)
    lost = lost_replicas(image, what, forced)
    merges = merges_of(image)
    off = standing_still(image, conditions.now_ms)
    still = {
        merge.name: "tablets of its table are brought together, to become fewer" for merge in merges
    }
    still.update(_locked(image))
    # A switch comes last, so that its reason is the one that is shown.
    still.update(off)
    # A copy of a lost replica could lack writes that were acknowledged.
    what.state.pinned = frozenset(lost)
    what.state.shut = frozenset(at for at, n in enumerate(what.node_ids) if n in shut)
    what.state.still = {at: still[name] for at, name in enumerate(what.names) if name in still}
    return PlannerInput(what, lost, forced, merges, off)


def _locked(image: Image) -> dict[str, str]:
    """Return the tables whose whole map an open request locks, with the reason.

    Moves of their tablets would only wait, and take the streams of other tables meanwhile.
    """
    whole = (Range(*WHOLE_RING),)
    plans = (each for transition in image.topology.open() for each in transition.plans.items())
    locked = {name for name, plan in plans if plan.locks == whole}
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


def to_the_end(image: Image, conditions: Conditions = NO_CONDITIONS) -> OfflinePlan:
    """Return all moves until the load is even, if nothing else changes, and the evenness then."""
    what = look(image, conditions).what

    def named(unit: int) -> list[tuple[str, str, int | str]]:
        name, tablet = what.tablet(unit)
        owner = image.schema.standing_map_owner(name)
        assert owner is not None, "a table that is balanced stands"
        return [(name.partition(".")[0], table.name, tablet) for table in standing(image, owner)]

    return whole_plan(what.state, what.names, named)


def shards_of(image: Image, table: str, tablet: int) -> dict[str, int]:
    """Return by node the shard that a tablet is read from. The tablet must exist."""
    data = image.schema.serving(table)
    assert data is not None, "it has verdicts"
    row = row_of(image.ring.placements[data.placement], tablet)
    return {node_id: row.shard_of(node_id) for node_id in row.reads}


def why_there(
    image: Image,
    table: str,
    tablet: int,
    conditions: Conditions = NO_CONDITIONS,
) -> list[NodeVerdict] | Rejection:
    """Return for each replica of a tablet and each node a verdict: may it move there, and why."""
    what, owner = look(image, conditions).what, image.schema.standing_map_owner(table)
    name = "" if owner is None else image.schema.full_name(owner)
    if name not in what.names:
        return unknown_table(table)
    at, count = what.names.index(name), what.tablets_of(name)
    if not 0 <= tablet < count:
        return unknown_tablet(table, count, tablet)
    return verdicts(what.state, what.names, what.first[at] + tablet)
