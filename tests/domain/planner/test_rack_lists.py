"""Rack lists: the rules in isolation, and the planner of a described cluster (Scylla's test_rack_list_*)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from stele.domain.json_documents import JsonDocumentError
from stele.domain.model.schema import Replication
from stele.domain.planner.cluster import (
    Cluster,
    ClusterNode,
    ClusterTable,
    NodeRole,
    Tablet,
    keeps_list,
    read_cluster,
    strays,
    vacant,
)
from stele.domain.planner.offline import plan_offline
from stele.domain.tablets.copies import RackPlace, deviations


def nodes_of(spec: str) -> tuple[ClusterNode, ...]:
    """Parse ``name@rack/shards``. A trailing ``!`` marks a draining node."""
    found = list[ClusterNode]()
    for each in spec.split():
        name, _, rest = each.rstrip("!").partition("@")
        rack, _, shards = rest.partition("/")
        state = NodeRole.DRAINING if each.endswith("!") else NodeRole.NORMAL
        found.append(ClusterNode(name, "dc1", rack, int(shards or 1), None, state))
    return tuple(found)


def table(racks: tuple[str, ...], tablets: Mapping[str, str], rf: int = 2) -> ClusterTable:
    """Return a table with these tablets by name, each with the nodes that have it."""
    rows = tuple(
        Tablet(name, tuple((node, 0) for node in on.split()), 100) for name, on in tablets.items()
    )
    return ClusterTable("ks", "t", rf, rows, racks={"dc1": racks})


def after(cluster: Cluster) -> dict[str, set[str]]:
    """Return the replicas of each tablet after all moves."""
    plan = plan_offline(cluster)
    assert plan.converged and not plan.unmovable
    held = {str(t.id): {node for node, _ in t.replicas} for t in cluster.tables[0].tablets}
    for move in plan.moves:
        if move.source[0] == move.target[0]:
            continue
        on = held[str(move.tablet)]
        assert move.source[0] in on and move.target[0] not in on
        on -= {move.source[0]}
        on |= {move.target[0]}
    return held


def test_only_replicas_outside_the_rack_list_change_racks() -> None:
    nodes = nodes_of("h1@r1 h2@r1 h3@r2 h4@r2 h5@r3 h6@r3")
    asked = table(("r1", "r3"), {"A": "h1 h3", "B": "h4 h6", "C": "h2 h5", "D": "h1 h6"})
    rack = {node.id: node.rack for node in nodes}
    held = after(Cluster(nodes, (asked,)))
    assert all(sorted(rack[n] for n in on) == ["r1", "r3"] for on in held.values())
    plan = plan_offline(Cluster(nodes, (asked,)))
    out_of_list = [m for m in plan.moves if rack[m.source[0]] != rack[m.target[0]]]
    assert {(m.tablet, m.source[0]) for m in out_of_list} == {("A", "h3"), ("B", "h4")}
    assert all("racks r1, r3" in move.reason for move in out_of_list)


def test_replicas_moved_into_a_rack_are_spread_over_shards() -> None:
    nodes = nodes_of("h1@r1/2 h2@r2/2 h3@r3/2")
    asked = table(("r1", "r3"), {"A": "h2 h3", "B": "h2 h3"})
    moves = [m for m in plan_offline(Cluster(nodes, (asked,))).moves if m.target[0] == "h1"]
    assert sorted(move.target for move in moves) == [("h1", 0), ("h1", 1)]


def test_two_replicas_in_one_rack_are_separated() -> None:
    nodes = nodes_of("h1@r1 h2@r1 h3@r2 h4@r2 h5@r3 h6@r3")
    rack = {node.id: node.rack for node in nodes}
    held = after(Cluster(nodes, (table(("r1", "r2"), {"A": "h1 h2", "B": "h5 h6"}),)))
    assert [sorted(rack[n] for n in on) for on in held.values()] == [["r1", "r2"]] * 2


@pytest.mark.parametrize("seed", range(20))
def test_racks_follow_the_list_and_are_even_within(seed: int) -> None:
    chance = random.Random(seed)
    spec = [f"n{at}@r{at % 3}" for at in range(9)]
    spec[0] += "!"
    nodes = nodes_of(" ".join(spec))
    rack = {node.id: node.rack for node in nodes}
    listed = tuple(chance.sample(("r0", "r1", "r2"), 2))
    tablets = {str(at): " ".join(chance.sample([*rack], 2)) for at in range(24)}
    held = after(Cluster(nodes, (table(listed, tablets),)))
    assert all(sorted(rack[n] for n in on) == sorted(listed) for on in held.values())
    counts = Counter(name for on in held.values() for name in on)
    assert not counts["n0"]
    for each in listed:
        here = [counts[name] for name in rack if rack[name] == each and name != "n0"]
        assert sum(here) == 24 and max(here) - min(here) <= 1


def test_unmovable_replica_names_the_racks_of_the_list() -> None:
    nodes = nodes_of("h1@r1! h2@r2 h3@r3")
    plan = plan_offline(Cluster(nodes, (table(("r1", "r2"), {"A": "h1 h2"}),)))
    (left,) = plan.unmovable
    assert left.node == "h1" and "one replica is in each of the racks r1, r2" in left.reason


@pytest.mark.parametrize(
    ("racks", "words"),
    [
        ({"dc1": ["r1", "r1"]}, "named once"),
        ({"dc1": []}, "at least one"),
        ({"dc1": ["r9"]}, "no node in rack 'r9'"),
        ({"dc2": ["r1"]}, "no node in rack 'r1' of dc 'dc2'"),
        ({"dc1": ["r1", "r2", "r3"]}, "the replication factor is 2"),
    ],
)
def test_invalid_rack_list_in_a_file_is_refused(racks: dict[str, list[str]], words: str) -> None:
    nodes = nodes_of("h1@r1 h2@r2 h3@r3")
    found = msgspec.to_builtins(Cluster(nodes, (table(("r1", "r2"), {"A": "h1 h2"}),)))
    found["tables"][0]["racks"] = racks
    with pytest.raises(JsonDocumentError, match=words) as raised:
        read_cluster(msgspec.json.encode(found))
    assert raised.value.path == f"tables[0].racks.{min(racks)}"


def test_lacking_and_surplus_racks_match_a_simple_count() -> None:
    chance = random.Random(7)
    places = [RackPlace(dc, f"r{at}") for dc in ("dc1", "dc2") for at in (1, 1, 2, 3)]
    for _ in range(300):
        racks = tuple(chance.sample(("r1", "r2", "r3", "r9"), chance.randrange(1, 5)))
        wanted = Replication({"dc1": len(racks), "dc2": chance.randrange(1, 4)}, {"dc1": racks})
        row = chance.sample(range(len(places)), chance.randrange(1, 6))
        padded = np.array([row + [-1] * (6 - len(row))])
        found = deviations(wanted, places, padded)
        of = [places[at].rack for at in row if places[at].dc == "dc1"]
        assert found["dc1"].lacks[0] == len([rack for rack in racks if rack not in of])
        kept = {rack for rack in racks if rack in of}
        assert found["dc1"].surplus[0] == len(of) - len(kept)
        there = len(row) - len(of)
        assert found["dc2"].lacks[0] == max(0, wanted.copies["dc2"] - there)
        assert found["dc2"].surplus[0] == max(0, there - wanted.copies["dc2"])


def test_move_never_leads_away_from_the_rack_list() -> None:
    chance = random.Random(3)
    racks = ("r1", "r2", "r3", "r4")

    def distance(named: tuple[str, ...], of: list[str]) -> int:
        return sum(abs(of.count(rack) - (rack in named)) for rack in racks)

    for _ in range(500):
        named = tuple(chance.sample(racks, chance.randrange(1, 5)))
        of = [chance.choice(racks) for _ in range(chance.randrange(1, 5))]
        source, target = chance.randrange(len(of)), chance.choice(racks)
        then = [*of[:source], target, *of[source + 1 :]]
        nearer = distance(named, then) < distance(named, of)
        assert keeps_list(named, of, source, target) == (nearer or target == of[source])
        assert bool(vacant(named, of)) == any(rack not in of for rack in named)
        if distance(named, of) == 0:
            assert not strays(named, of) and not vacant(named, of)
