"""What the balancer sees at one look: the tablets as columns, and what of them may go where."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from stele.domain.balance.offline import whole_plan
from stele.domain.balance.planned import OfflinePlan, Verdict
from stele.domain.balance.verdicts import verdicts
from stele.domain.base import Rejection
from stele.domain.context import unknown_table, unknown_tablet
from stele.domain.image import Image
from stele.domain.tablets.colocation import Merge, merges_of
from stele.domain.tablets.columns import Tablets, tablets_of
from stele.domain.tablets.conditions import NO_CONDITIONS, Conditions
from stele.domain.tablets.groups import standing
from stele.domain.tablets.maps import row_of
from stele.domain.tablets.stuck import Lost, lost_replicas
from stele.domain.tablets.switched import standing_still


@dataclass(frozen=True, slots=True)
class Look:
    """``lost`` are replicas that cannot be made anew, ``forced`` nodes of which that is accepted, ``merges``
    tables whose siblings are brought together, unless balancing is ``off`` for them, with why.
    """

    what: Tablets
    lost: Lost
    forced: frozenset[str]
    merges: list[Merge]
    off: Mapping[str, str]


def look(image: Image, conditions: Conditions) -> Look:
    waiting = _waiting(image, conditions.down)
    what = tablets_of(image, conditions.down | conditions.avoided, waiting, conditions.loads)
    shut = conditions.shut() | waiting
    forced = frozenset(r.node_id for r in image.requests.pending() if r.removes_node and r.force)
    lost = lost_replicas(image, what, forced)
    merges = merges_of(image)
    off = standing_still(image, conditions.now_ms)
    still = {
        merge.name: "tablets of its table are brought together, to become fewer" for merge in merges
    }
    still.update(off)
    what.state.pinned = frozenset(lost)
    what.state.shut = frozenset(at for at, n in enumerate(what.node_ids) if n in shut)
    what.state.still = {at: still[name] for at, name in enumerate(what.names) if name in still}
    return Look(what, lost, forced, merges, off)


def _waiting(image: Image, down: Set[str]) -> frozenset[str]:
    """Nodes that are asked to leave, or to be removed, and keep what they have until that can be carried out:
    a removal once its node is excluded, a leave while all other members are up.
    """
    members, excluded = image.membership.taking_part().keys(), image.membership.excluded()
    return frozenset(
        request.node_id
        for request in image.requests.pending()
        if request.removes_node
        and (not excluded.issuperset(request.dead_nodes) or not members.isdisjoint(down))
    )


def to_the_end(image: Image, conditions: Conditions = NO_CONDITIONS) -> OfflinePlan:
    """All moves until everything is even, were nothing else to happen; and how even it is then."""
    what = look(image, conditions).what

    def named(unit: int) -> list[tuple[str, str, int | str]]:
        name, tablet = what.tablet(unit)
        owner = image.schema.standing_map_owner(name)
        assert owner is not None, "a table that is balanced stands"
        return [(name.partition(".")[0], table.name, tablet) for table in standing(image, owner)]

    return whole_plan(what.state, what.names, named)


def shards_of(image: Image, table: str, tablet: int) -> dict[str, int]:
    """By node the shard that a tablet is read from. The table has such a tablet."""
    data = image.schema.serving(table)
    assert data is not None, "it has verdicts"
    row = row_of(image.ring.placements[data.placement], tablet)
    return {node_id: row.shard_of(node_id) for node_id in row.reads}


def why_there(
    image: Image,
    table: str,
    tablet: int,
    conditions: Conditions = NO_CONDITIONS,
) -> list[Verdict] | Rejection:
    """For each replica of a tablet and each node, whether the balancer would move it there, and the rule."""
    what, owner = look(image, conditions).what, image.schema.standing_map_owner(table)
    name = "" if owner is None else image.schema.full_name(owner)
    if name not in what.names:
        return unknown_table(table)
    at, count = what.names.index(name), what.tablets_of(name)
    if not 0 <= tablet < count:
        return unknown_tablet(table, count, tablet)
    return verdicts(what.state, what.names, what.first[at] + tablet)
