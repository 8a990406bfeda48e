"""The invariants of docs/design.md as pure functions of images.

A check never calls the production rule that it checks: replicas, locks and winners are computed here
again, naively. ``node_witness`` judges the effects of the nodes.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from stele.domain.image import Image
from stele.domain.model.schema import owner_of
from stele.domain.model.transitions import Transition
from stele.domain.names import TABLET_MAP, RequestKind, RequestStatus
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.topology.operations.base import unchanged
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator import ranges_in_use as in_use
from stele_simulator.quorum_sets import asks_for_another_number
from stele_simulator.tablet_checks import has_copies, replications_of
from stele_simulator.violation import require

Segments = set[tuple[int, int]]
"""Pieces of the ring between neighbouring tokens, as (token before, last token)."""


def check_versions(before: Image, after: Image) -> None:
    """I3: the fence follows the version, at most one behind, and neither decreases. The versions of a
    recovered log continue above those that may be lost.
    """
    old, new = before.topology, after.topology
    floor = after.founding.version_floor
    require(
        new.fence_version <= new.version <= max(new.fence_version, floor) + 1,
        "I3",
        "fence_version <= version, and no three versions in use",
        f"epoch {after.epoch} has version {new.version} and fence {new.fence_version}",
    )
    require(
        new.version in (old.version, max(old.version, floor) + 1)
        and old.fence_version <= new.fence_version,
        "I3",
        "versions go up one at a time",
        f"epoch {after.epoch} goes from {old.version}/{old.fence_version}"
        f" to {new.version}/{new.fence_version}",
    )
    if old.version == new.version:
        for change in in_use.changes(before, after):
            require(
                False,
                "I3",
                "replicas change by a new version only",
                f"epoch {after.epoch} changes token {change.token} from {change.before} to"
                f" {change.after}",
            )


def check_row_versions(before: Image, after: Image) -> None:
    """I3: a row keeps the version that gave it its replicas, and takes the new one when these change."""
    version = after.topology.version
    for data_id, (one, two) in in_use.shared(before, after).items():
        if one is two:
            continue
        keyspace, was = in_use.keyspace_of(after, data_id), in_use.keyspace_of(before, data_id)
        for row in two.rows:
            there = one.overlapping(in_use.range_of(row))
            same = all(in_use.is_as(old, row) for old in there)
            wanted = max(old.version for old in there) if same else version
            found = max(row.version, keyspace.placed_version)
            require(
                row.version == wanted
                if keyspace.placed_version == was.placed_version
                else found >= max(wanted, was.placed_version),
                "I3",
                f"({row.start}, {row.end}] of {keyspace.name} has its replicas since version {wanted}",
                f"epoch {after.epoch} says version {found}",
            )


def check_quorums_meet(older: Image, newer: Image) -> None:
    """I4: whatever one of the two views acknowledges, every quorum read of either view meets."""
    for name, (one, two) in in_use.shared(older, newer).items():
        if one is two:
            continue
        ends = sorted({row.end for row in (*one.rows, *two.rows)})
        pairs = {(in_use.sides(one.row_for(e)), in_use.sides(two.row_for(e))): e for e in ends}
        for (first, second), end in pairs.items():
            require(
                in_use.meet(first, second),
                "I4",
                f"writes and reads of versions {older.topology.version} and"
                f" {newer.topology.version} meet at token {end} of {name}",
                f"{first} and {second} have quorums that do not",
            )
            for sides in (first, second):
                differs = asks_for_another_number(sides)
                require(
                    not differs,
                    "I4",
                    f"more than half of the readers are a quorum of {sides}, for a write more than half of"
                    " those on the other side of a move as well",
                    differs,
                )


def check_sessions(after: Image, ever: set[str]) -> None:
    """I6: a session is of one transition and one state, and is opened once. Adds what is new to ``ever``."""
    open_ = [t.session for t in after.topology.open() if t.session]
    require(
        len({*open_}) == len(open_),
        "I6",
        "two transitions never share a session",
        f"epoch {after.epoch} has {open_}",
    )
    ever |= {*open_}


def check_fresh_sessions(before: Image, after: Image, ever: set[str]) -> None:
    """I6: entering a state that works opens a session that never was; see ``check_sessions``."""
    for transition in after.topology.open():
        was = before.topology.transitions.get(transition.transition_id)
        if transition.session and (was is None or was.entered_epoch != transition.entered_epoch):
            fresh = transition.session not in ever
            opened = f"{transition.session} is opened again at epoch {after.epoch}"
            require(fresh, "I6", "a session is opened once", opened)


def check_locks(image: Image) -> None:
    """Open transitions never meet: neither in ranges that change nor beside a token that comes or goes. While a
    keyspace's replication changes, no token does.
    """
    open_ = image.topology.open()
    moving = [t for t in open_ if t.keyspace_id and t.plans]
    going = [
        transition
        for transition in open_
        if OPERATIONS[transition.kind].ring_after is not unchanged
        and any(s.tokens and not s.replaced_id for s in transition.subjects)
    ]
    require(
        not (moving and going),
        "the locks of open transitions never meet",
        "a keyspace's replication changes on a ring that stays",
        f"epoch {image.epoch} has {[t.transition_id for t in (*moving, *going)]} open",
    )
    tokens = {*image.membership.ring_tokens()}
    tokens |= {t for o in open_ for s in o.subjects for t in s.tokens}
    for one, two in combinations(open_, 2):
        for name in sorted(one.plans.keys() & two.plans.keys()):
            bounds = {
                t for o in (one, two) for row in o.plans[name].rows for t in (row.start, row.end)
            }
            cuts = sorted((tokens | bounds) - {MIN_TOKEN})
            both = _locked(image, one, name, cuts) & _locked(image, two, name, cuts)
            require(
                not both,
                "the locks of open transitions never meet",
                f"{one.kind} {one.transition_id} has {name} to itself where it changes",
                f"{two.kind} {two.transition_id} has {sorted(both)[:2]} too at epoch {image.epoch}",
            )


def _locked(image: Image, transition: Transition, name: str, cuts: list[int]) -> Segments:
    """Return what a transition changes: on the ring also both pieces beside its nodes' tokens, cut at
    ``cuts``.

    A placement that was created after its tokens were final has an empty plan.
    """
    plan = transition.plans[name]
    if not (plan.rows or plan.split or plan.merge):
        return set()
    pieces = list(zip([MIN_TOKEN, *cuts], [*cuts, MAX_TOKEN + 1], strict=True))
    intervals = [
        (row.start, MAX_TOKEN + 1 if row.end == MIN_TOKEN else row.end)
        for row in transition.plans[name].rows
    ]
    own = set[int]() if name.startswith(TABLET_MAP) else _coming_or_going(image, transition)
    with_own = [MIN_TOKEN, *sorted({*image.membership.ring_tokens()} | own), MAX_TOKEN + 1]
    for at, token in enumerate(with_own):
        if token in own:
            intervals += [(with_own[at - 1], token), (token, with_own[at + 1])]
    return {p for p in pieces if any(start <= p[0] and p[1] <= end for start, end in intervals)}


def _coming_or_going(image: Image, transition: Transition) -> set[int]:
    """Tokens of the ring that come or go: not those that pass to a node in another's place, nor those kept."""
    found = set[int]()
    for subject in transition.subjects:
        if transition.kind is RequestKind.MOVE:
            found |= {*subject.tokens} ^ {*_tokens_of(image, subject.node_id)}
        elif transition.kind is not RequestKind.REBUILD and not subject.replaced_id:
            found |= {*subject.tokens}
    return found


def check_placements(image: Image) -> None:
    """I7 in every step: no node twice, every dc with its whole replication factor in the reads."""
    locations = {n: node.dc for n, node in image.membership.nodes.items()}
    for name, replication in _least_replications(image).items():
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


def _least_replications(image: Image) -> dict[str, dict[str, int]]:
    """By placement; while a keyspace's replication changes it is in each dc the lower of the two."""
    found = dict(image.schema.replications())
    for transition in image.topology.open():
        request = image.request(transition.transition_id)
        if request is not None and transition.transition_id in found:
            before, after = found[transition.transition_id], request.replication
            lower = {dc: min(rf, after.get(dc, 0)) for dc, rf in before.items()}
            found[transition.transition_id] = lower
    return found


def check_at_rest(image: Image) -> None:
    """I7 at rest: the replicas are those that a plain walk of the ring finds, rack by rack. Keyspaces of equal
    replication share them, and nothing else is left.
    """
    if image.topology.transitions:
        return
    on_the_ring = [k for k in image.schema.by_id.values() if not k.tablets]
    names = {
        k.keyspace_id: ",".join(f"{dc}:{rf}" for dc, rf in sorted(k.replication.items()))
        for k in on_the_ring
    }
    _check_tablets_at_rest(image)
    maps = {table.placement for table in image.schema.tables.values()} - {""}
    require(
        {*image.ring.placements} == {*names.values()} | maps
        and all(k.placement == names[k.keyspace_id] for k in on_the_ring),
        "I7",
        f"keyspaces have the placements of their replications: {sorted({*names.values()})}",
        f"epoch {image.epoch} has {sorted(image.ring.placements)}",
    )
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


def _check_tablets_at_rest(image: Image) -> None:
    """Each tablet has its number of replicas in each dc, read and written.

    All of them are members with tokens, or replaced nodes that are still to be removed.
    """
    going, nodes = image.requests.going(), image.membership.nodes
    members = {n: node for n, node in nodes.items() if node.tokens or n in going}
    for table in image.schema.tables.values():
        for row in image.ring.placements[table.placement].rows if table.placement else ():
            there = Counter(members[n].dc for n in row.reads if n in members)
            require(
                set(row.reads) == set(row.writes) and has_copies(image, table, there),
                "I7",
                f"({row.start}, {row.end}] of {table.name} has replicas {replications_of(image, table)}",
                f"epoch {image.epoch} has reads {row.reads} and writes {row.writes}",
            )


def natural_replicas(
    tokens: list[tuple[int, str]],
    racks: Mapping[str, tuple[str, str]],
    replication: Mapping[str, int],
    end: int,
) -> set[str]:
    """Walk up the ring from ``end``. Each dc takes nodes of new racks first, then the skipped ones."""
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


def check_undone(opened: Mapping[str, Image], before: Image, after: Image) -> None:
    """I11: what was undone leaves the replicas and tokens of before it opened, on all that it had locked.

    ``opened`` has the image before each open transition. Undone is what ended without its request being done.
    """
    for transition in before.topology.open():
        if transition.transition_id in after.topology.transitions:
            continue
        requests = [after.request(request_id) for request_id in transition.request_ids()]
        if any(request is None or request.status is RequestStatus.DONE for request in requests):
            continue
        start = opened[transition.transition_id]
        for data_id, (one, two) in in_use.shared(start, after).items():
            keyspace = in_use.keyspace_of(start, data_id)
            moved = owner_of(data_id) == transition.keyspace_id
            name = transition.transition_id if moved else keyspace.placement
            plan = transition.plans.get(name)
            if plan is None:
                continue
            ranges = [(row.start, row.end) for row in plan.rows]
            ranges += [(row.start, row.end) for row in (*plan.split, *plan.merge)]
            for low, high in ranges:
                wanted, found = _between(one, low, high), _between(two, low, high)
                require(
                    wanted == found,
                    "I11",
                    f"{transition.kind} {transition.transition_id} leaves ({low}, {high}] of"
                    f" {name} as at epoch {start.epoch}: {wanted}",
                    f"at epoch {after.epoch} it is {found}",
                )
        replaced = (s.replaced_id for s in transition.subjects if s.replaced_id)
        for node_id in (*transition.nodes(), *replaced):
            tokens = [image.membership.nodes[node_id].tokens for image in (start, after)]
            require(
                tokens[0] == tokens[1],
                "I11",
                f"{node_id} has the tokens of epoch {start.epoch}: {tokens[0]}",
                f"at epoch {after.epoch} it has {tokens[1]}",
            )


def _between(placement: Placement, start: int, end: int) -> list[tuple[int, in_use.Sides]]:
    """Rows over (start, end], each with its own end."""
    rows = placement.overlapping(in_use.Range(start, end))
    return [(row.end, in_use.sides(row)) for row in rows]


def _tokens_of(image: Image, node_id: str) -> list[int]:
    return sorted(t for t, owner in image.membership.ring_tokens().items() if owner == node_id)


def rows_are_kept(image: Image) -> bool:
    """True while exclusions have cost some range its quorum: nodes keep the rows of ranges that they lost."""
    excluded = {name for name, node in image.membership.nodes.items() if node.excluded_since}
    return any(
        excluded.intersection(row.reads) and 2 * len({*row.reads} - excluded) <= len(row.reads)
        for placement in (image.ring.placements.values() if excluded else ())
        for row in placement.rows
    )


def check_no_way_back(before: Image, after: Image) -> None:
    """I11: no way back once reads have moved, since the old replicas lack later writes.

    A tablet turns back while both sides still receive all writes and no client reads from the new side.
    """
    for transition in before.topology.open():
        now = after.topology.transitions.get(transition.transition_id)
        turns = now is not None and bool(now.mark) and not transition.mark
        for name, plan in transition.plans.items():
            for row in plan.rows:
                one, two = (
                    before.ring.placements[name].row_for(row.end),
                    after.ring.placements.get(name),
                )
                moved = one.reads == row.new and {*row.new} != {*row.old}
                other = None if two is None else two.row_for(row.end)
                back = other is not None and other.reads == row.old and now is not None
                both = {*row.old, *row.new}
                kept = name.startswith(TABLET_MAP) and both <= {*one.writes}
                kept = kept and (other is None or not back or both <= {*other.writes})
                require(
                    kept or not (moved and (turns or back)),
                    "I11",
                    f"no way back for {transition.kind} {transition.transition_id} once"
                    f" ({row.start}, {row.end}] of {name} is read from {row.new}",
                    f"epoch {after.epoch} {'marks it' if turns else 'goes back'}",
                )


def check_goes_back(before: Image, after: Image) -> None:
    """I11: the reads of no range that a marked transition was to move go forward after the mark. Barriers wait
    for none of these ranges.
    """
    for transition in before.topology.open():
        if not transition.mark:
            continue
        for name, plan in transition.plans.items():
            one, two = before.ring.placements[name], after.ring.placements.get(name)
            if two is None:
                continue
            for row in plan.rows:
                was, now = one.row_for(row.end).reads, two.row_for(row.end).reads
                moves = was == row.old and now == row.new and {*row.new} != {*row.old}
                require(
                    not moves,
                    "I11",
                    f"{transition.kind} {transition.transition_id} is marked to go back, so reads of"
                    f" ({row.start}, {row.end}] of {name} stay at {row.old}",
                    f"epoch {after.epoch} moves them to {row.new}",
                )
