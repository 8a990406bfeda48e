"""The invariants of the design as pure functions of images (design, section 5). No production rule is
called where the rule itself is what is being checked: replicas, quorums of gates and winners are computed
here anew, naively.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from functools import cache
from itertools import combinations

from stele.domain.image import Image
from stele.domain.names import RequestKind, RequestStatus, TransitionState
from stele.domain.ring import quorum
from stele.domain.ring.ranges import Placement, RangeReplicas
from stele.sim.violation import require


def majority(count: int) -> int:
    return count // 2 + 1


def check_versions(before: Image, after: Image) -> None:
    """I3: the fence follows the version, one behind at most; neither ever goes back."""
    old, new = before.topology.topology, after.topology.topology
    require(
        new.fence_version <= new.version <= new.fence_version + 1,
        "I3",
        "fence_version <= version, and no three versions in use",
        f"epoch {after.epoch} has version {new.version} and fence {new.fence_version}",
    )
    require(
        old.version <= new.version <= old.version + 1 and old.fence_version <= new.fence_version,
        "I3",
        "versions go up one at a time",
        f"epoch {after.epoch} goes from {old.version}/{old.fence_version}"
        f" to {new.version}/{new.fence_version}",
    )


def check_quorums_meet(older: Image, newer: Image) -> None:
    """I4: whatever one of the two views acknowledges, every quorum read of either view meets."""
    for name, placement in newer.ring.placements.items():
        other = older.ring.placements.get(name)
        if other is None or other is placement:
            continue
        for one, two in _pairs(other, placement):
            met = _quorums_meet(_sides(one), _sides(two)) and _quorums_meet(
                _sides(two), _sides(one)
            )
            require(
                met,
                "I4",
                f"writes and reads of versions {older.topology.topology.version} and "
                f"{newer.topology.topology.version} meet in ({two.start}, {two.end}] of {name}",
                f"{one.reads}/{one.writes} and {two.reads}/{two.writes} have quorums that do not",
            )


def _pairs(one: Placement, two: Placement) -> Iterable[tuple[RangeReplicas, RangeReplicas]]:
    """Rows of both placements that hold a common range, once each."""
    ends = sorted({row.end for row in (*one.rows, *two.rows)})
    return dict.fromkeys((one.row_for(end), two.row_for(end)) for end in ends)


def _sides(row: RangeReplicas) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return row.reads, row.writes


Sides = tuple[tuple[str, ...], tuple[str, ...]]
Rule = Callable[[Set[str], RangeReplicas], bool]


def _quorums_meet(written: Sides, read: Sides) -> bool:
    return _meet(written, read, quorum.write_satisfied, quorum.read_satisfied)


@cache
def _meet(written: Sides, read: Sides, write_rule: Rule, read_rule: Rule) -> bool:
    """Every set of acks that satisfies a write leaves too few other replicas to satisfy a read."""
    writer, reader = RangeReplicas(0, 1, *written), RangeReplicas(0, 1, *read)
    for size in range(len(writer.writes) + 1):
        for acks in combinations(writer.writes, size):
            rest = set(reader.reads) - set(acks)
            if write_rule(set(acks), writer) and read_rule(rest, reader):
                return False
    return True


def gate_covers(image: Image, passed: Set[str]) -> bool:
    """I5: a majority of members, and of the replicas before, after and of both in every touched range.

    In a rollback all live versions read the replicas of before, so only these count, and a node whose
    join is being undone is no member any more.
    """
    operation, undone = image.topology.operation, bool(image.topology.topology.rollback)
    members = set(image.membership.taking_part())
    if operation is not None and undone and operation.kind is RequestKind.JOIN:
        members.discard(operation.node_id)
    if members and len(members & passed) < majority(len(members)):
        return False
    rows = [] if operation is None else [r for p in operation.plans.values() for r in p.rows]
    sets = [(row.old,) if undone else (row.old, row.new, (*row.old, *row.new)) for row in rows]
    return all(
        len({*replicas} & passed) >= majority(len({*replicas}))
        for each in sets
        for replicas in each
        if replicas
    )


def check_placements(image: Image) -> None:
    """I7 in every step: no node twice, every dc with its whole replication factor in the reads."""
    locations = {n: node.dc for n, node in image.membership.nodes.items()}
    for name, replication in image.schema.replications().items():
        for row in image.ring.placements[name].rows:
            for replicas in (row.reads, row.writes):
                require(
                    len(set(replicas)) == len(replicas),
                    "I7",
                    "no two replicas on one node",
                    f"({row.start}, {row.end}] of {name} has {replicas} at epoch {image.epoch}",
                )
            for dc, rf in replication.items():
                count = sum(1 for node in row.reads if locations[node] == dc)
                require(
                    count >= rf,
                    "I7",
                    f"{rf} replicas in {dc} at every step",
                    f"({row.start}, {row.end}] of {name} is read from {row.reads}"
                    f" at epoch {image.epoch}",
                )
            require(
                set(row.reads) <= set(row.writes),
                "I4",
                "who is read from is written to",
                f"({row.start}, {row.end}] of {name}: {row.reads} and {row.writes}",
            )


def check_at_rest(image: Image) -> None:
    """I7 at rest: the replicas are those that a plain walk of the ring finds, rack by rack."""
    if image.topology.operation is not None:
        return
    tokens = sorted(image.membership.ring_tokens().items())
    racks = {n: (node.dc, node.rack) for n, node in image.membership.nodes.items()}
    for name, replication in image.schema.replications().items():
        for row in image.ring.placements[name].rows:
            wanted = natural_replicas(tokens, racks, replication, row.end)
            require(
                set(row.reads) == set(row.writes) == wanted,
                "I7",
                f"({row.start}, {row.end}] of {name} belongs to {sorted(wanted)}",
                f"epoch {image.epoch} has reads {row.reads} and writes {row.writes}",
            )


def natural_replicas(
    tokens: list[tuple[int, str]],
    racks: Mapping[str, tuple[str, str]],
    replication: Mapping[str, int],
    end: int,
) -> set[str]:
    """Walk up the ring from ``end``; each dc takes nodes of new racks first, then whom it passed over."""
    first = next((i for i, (token, _) in enumerate(tokens) if token >= end), 0)
    if end == -(2**63):
        first = 0
    walk = list(dict.fromkeys(node for _, node in (*tokens[first:], *tokens[:first])))
    found = set[str]()
    for dc, rf in replication.items():
        found |= _walk_dc([node for node in walk if racks[node][0] == dc], racks, rf)
    return found


def _walk_dc(nodes: list[str], racks: Mapping[str, tuple[str, str]], rf: int) -> set[str]:
    """New racks are taken as they are met; a rack again only as often as there are too few racks."""
    repeats = max(0, rf - len({racks[node] for node in nodes}))
    chosen = set[str]()
    for node in nodes:
        if len(chosen) == rf:
            break
        if racks[node] not in {racks[other] for other in chosen}:
            chosen.add(node)
        elif repeats > 0:
            repeats -= 1
            chosen.add(node)
    return chosen


def check_undone(history: list[Image], after: Image) -> None:
    """I11: an operation that was rolled back leaves the placements and tokens of before it."""
    before = history[-1]
    operation = before.topology.operation
    if operation is None or after.topology.operation is not None:
        return
    request = after.request(operation.request_id)
    if request is None or request.status is RequestStatus.DONE:
        return
    start = history[request.started_epoch - 1]
    require(
        start.ring.placements == after.ring.placements,
        "I11",
        f"request {request.request_id} ({request.kind}) leaves the placements of epoch {start.epoch}",
        f"epoch {after.epoch} has others",
    )
    rest = (start.membership.ring_tokens(), after.membership.ring_tokens())
    require(rest[0] == rest[1], "I11", f"the tokens of epoch {start.epoch}", f"{rest[1]}")


def check_no_way_back(before: Image, after: Image) -> None:
    """Nobody turns round once reads have moved: the old replicas lack what was written since."""
    operation, old = before.topology.operation, before.topology.topology
    new = after.topology.topology
    if operation is None or not new.rollback or old.rollback:
        return
    forward_only = {TransitionState.WRITE_BOTH_READ_NEW}
    if operation.kind is RequestKind.LEAVE:
        forward_only.add(TransitionState.LEFT_TOKEN_RING)
    require(
        old.transition_state not in forward_only,
        "I11",
        f"no rollback after the point of no return ({old.transition_state})",
        f"epoch {after.epoch} goes to {new.transition_state}",
    )
