"""NetworkTopologyStrategy: the natural replicas of every range (reference: cassandra_tcm 5.5)."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import msgspec

from stele.domain.ring.ranges import Placement, Range, RangeReplicas, ranges_of


class NodeLocation(msgspec.Struct, frozen=True):
    """Where a node stands. Racks of the same name in two dcs are two racks."""

    dc: str
    rack: str


class DcRule(msgspec.Struct, frozen=True):
    """How many replicas a dc takes at most, and how often one may stand in a rack that has one."""

    replicas: int
    acceptable_rack_repeats: int


def network_topology(
    tokens: Mapping[int, str], locations: Mapping[str, NodeLocation], rf: Mapping[str, int]
) -> tuple[tuple[Range, tuple[str, ...]], ...]:
    """Each range of the ring with its replicas, in ring order.

    ``tokens`` maps token to owner, ``rf`` maps dc to replication factor. A walk up the ring from a
    range's end meets the nodes; each dc takes ``min(rf, its nodes)`` of them, first one from each rack
    while there are racks enough. Replicas stand in the order of the walk, so the first is the primary.
    Only nodes that own tokens count as nodes, and only their racks as racks.
    """
    ring = sorted(tokens)
    replicas = dict(zip(ring, _walks([tokens[t] for t in ring], locations, rf), strict=True))
    if not ring:
        return tuple((range_, ()) for range_ in ranges_of(()))
    wrap_around = replicas[ring[0]]
    return tuple((range_, replicas.get(range_.end, wrap_around)) for range_ in ranges_of(ring))


def placement_of(
    tokens: Mapping[int, str], locations: Mapping[str, NodeLocation], rf: Mapping[str, int]
) -> Placement:
    """The placement of a ring at rest: the natural replicas both serve reads and receive writes."""
    rows = network_topology(tokens, locations, rf)
    return Placement.of(RangeReplicas(r.start, r.end, nodes, nodes) for r, nodes in rows)


def _walks(
    owners: list[str], locations: Mapping[str, NodeLocation], rf: Mapping[str, int]
) -> list[tuple[str, ...]]:
    """Replicas found by the walk from each token; ``owners`` are the tokens' owners in ring order.

    Going down the ring twice, a node that is met moves to the front of its dc: so each dc always has
    its nodes in the order in which a walk up from here meets them, and only the dc of the node just met
    chooses anew. That makes it O(tokens x nodes looked at) where walking over tokens could be squared.
    """
    rules = _rules(set(owners), locations, rf)
    ahead: dict[str, OrderedDict[str, None]] = {dc: OrderedDict() for dc in rules}
    chosen: dict[str, list[str]] = {dc: [] for dc in rules}
    met_at: dict[str, int] = {}
    found: list[tuple[str, ...]] = []
    for position in reversed(range(2 * len(owners))):
        node = owners[position % len(owners)]
        dc = locations[node].dc
        if dc in rules:
            met_at[node] = position
            ahead[dc][node] = None
            ahead[dc].move_to_end(node, last=False)
            chosen[dc] = _choose(ahead[dc], locations, rules[dc])
        if position < len(owners):
            found.append(tuple(sorted(chain(*chosen.values()), key=met_at.__getitem__)))
    found.reverse()
    return found


def _rules(
    nodes: Collection[str], locations: Mapping[str, NodeLocation], rf: Mapping[str, int]
) -> dict[str, DcRule]:
    """The rule of each dc that has nodes and replicas."""
    found: dict[str, DcRule] = {}
    for dc in sorted(rf):
        members = [node for node in nodes if locations[node].dc == dc]
        racks = {locations[node].rack for node in members}
        if members and rf[dc] > 0:
            found[dc] = DcRule(rf[dc], rf[dc] - len(racks))
    return found


def _choose(nodes: Iterable[str], locations: Mapping[str, NodeLocation], rule: DcRule) -> list[str]:
    """The nodes of one dc that a walk takes, meeting them in the order given."""
    chosen: list[str] = []
    racks = set[str]()
    repeats_left = rule.acceptable_rack_repeats
    for node in nodes:
        rack = locations[node].rack
        if rack not in racks:
            racks.add(rack)
        elif repeats_left > 0:
            repeats_left -= 1
        else:
            continue
        chosen.append(node)
        if len(chosen) == rule.replicas:
            break
    return chosen
