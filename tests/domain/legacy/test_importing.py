"""From a legacy cluster to a state: what it becomes, and what stands against it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given

from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.legacy.description import Answer, Legacy
from stele.domain.legacy.importing import Imported, imported
from stele.domain.legacy.joined import Joined, Texts, join
from stele.domain.legacy.texts.describecluster import parse_describecluster
from stele.domain.legacy.texts.describering import parse_describering
from stele.domain.legacy.texts.ring import parse_ring
from stele.domain.legacy.texts.rows import parse_peers
from stele.domain.legacy.texts.status import parse_status
from stele.domain.names import NodeState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.strategy import NodeLocation, placement_of
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.snapshot import facts_to_image, image_to_facts, state_hash
from tests.domain.legacy.samples import joined, sample
from tests.domain.ring.rings import Ring, rings, some_rf

replace = msgspec.structs.replace
VERSION = "83541f18-c1bc-11ee-b55e-4d563ca8da4b"


def legacy(kind: str = "") -> Legacy:
    return joined(kind).legacy


def image_of(found: Imported) -> Image:
    assert found.problems == ()
    assert found.differences == ()
    assert found.image is not None
    return found.image


def remarks(found: Imported) -> str:
    assert found.refused
    assert found.image is None
    return "\n".join(map(str, (*found.problems, *found.differences)))


def test_a_real_cluster_becomes_a_state_at_rest() -> None:
    found = imported(legacy())
    image = image_of(found)
    assert found.left_out == ("system", "system_schema")
    assert found.compared["orders"] == 24
    assert image.cluster == "Shop Prod"
    assert (image.topology.version, image.topology.fence_version) == (1, 1)
    assert {node.state for node in image.membership.nodes.values()} == {NodeState.NORMAL}
    node = image.membership.nodes["c6a45212-e8a6-41ce-94be-e749de55f2e6"]
    assert (node.host_id, node.address, node.dc) == (node.node_id, "127.0.7.6", "south")
    assert node.release_version == "5.0.2"
    assert {*image.ring.placements} == {"east:2,south:1,west:2", "east:3,south:1"}
    assert {*image.schema.ids} == {*found.compared}
    assert image.schema.serving("orders") is not None


def test_the_same_cluster_becomes_the_same_state_each_time_and_is_written_back_as_facts() -> None:
    image = image_of(imported(legacy()))
    again = replace(legacy(), nodes=legacy().nodes[::-1], keyspaces=legacy().keyspaces[::-1])
    assert state_hash(image_of(imported(again))) == state_hash(image)
    read = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
    assert state_hash(read) == state_hash(image) != state_hash(EMPTY_FOR_FOLLOWERS)


def test_a_keyspace_that_is_left_out_needs_no_answer() -> None:
    some = joined(keyspaces=["orders"]).legacy
    assert "audit: nothing says which replicas" in remarks(imported(some))
    without = ("audit", "system_auth", "system_distributed", "system_traces")
    assert {*image_of(imported(some, without=without)).schema.ids} == {"orders"}


def test_every_difference_in_replicas_is_told() -> None:
    right = legacy()
    first, *others = right.answers["orders"]
    wrong = Answer(first.start, first.end, (*first.replicas[:-1], "127.0.7.1"))
    found = imported(replace(right, answers={**right.answers, "orders": (wrong, *others[:-1])}))
    assert found.problems == ()
    changed, missing = sorted(found.differences, key=lambda each: each.theirs is None)
    assert (changed.start, changed.end) == (first.start, first.end)
    assert changed.theirs == tuple(sorted(wrong.replicas))
    assert changed.ours == tuple(sorted(first.replicas))
    assert (missing.start, missing.end) == (others[-1].start, others[-1].end)
    assert "no such range" in remarks(found)


def test_a_simple_strategy_over_racks_differs_and_over_dcs_is_refused() -> None:
    over_dcs = legacy().keyspaces[0]
    simple = replace(over_dcs, strategy="SimpleStrategy", options={"replication_factor": "2"})
    some = replace(legacy(), keyspaces=(simple,), answers={simple.name: ()})
    assert "SimpleStrategy over 3 dcs" in remarks(imported(some))
    answers = parse_describering(sample("describering/system_traces-simple.txt")).answers
    racks = replace(
        some,
        nodes=tuple(replace(node, dc="all") for node in some.nodes),
        answers={simple.name: answers},
    )
    found = imported(racks)
    assert found.problems == ()
    assert 0 < len(found.differences) < len(answers), "1 and 2 share rack r1, and are neighbours"
    rackless = replace(racks, nodes=tuple(replace(node, rack="r1") for node in racks.nodes))
    assert image_of(imported(rackless)).schema.replications() == {"all:2": {"all": 2}}


def test_a_node_that_is_down_is_a_member_when_it_is_named() -> None:
    down = legacy("down")
    assert "127.0.7.5: it is down (DN)" in remarks(imported(down))
    assert "the versions of 127.0.7.5 are not known" in remarks(imported(down))
    for name in ("127.0.7.5", "93d54e74-4dbd-4ecf-9f71-ce8f7fd69a0c"):
        assert state_hash(image_of(imported(down, ignored=[name]))) == state_hash(
            image_of(imported(legacy()))
        )
    assert "there is no such node" in remarks(imported(legacy(), ignored=["127.0.7.9"]))


def test_a_node_that_joins_refuses_the_import_and_changes_no_replicas() -> None:
    found = imported(legacy("joining"), ignored=["127.0.7.7"])
    assert found.differences == ()
    (only,) = found.problems
    assert "it is joining (UJ)" in only.what


def refused_for(**changes: object) -> str:
    return remarks(imported(replace(legacy(), **changes)))


@pytest.mark.parametrize(
    ("status", "why"),
    [("UL", "leaving"), ("DL", "leaving"), ("UM", "moving"), ("?N", "not known"), ("U?", "known")],
)
def test_a_node_that_does_not_stand_still_refuses_the_import(status: str, why: str) -> None:
    first, *others = legacy().nodes
    assert why in refused_for(nodes=(replace(first, status=status), *others))


def test_what_is_there_twice_or_lacking_refuses_the_import() -> None:
    first, second, *others = legacy().nodes
    shared = replace(second, tokens=(*second.tokens, first.tokens[0]))
    assert f"token {first.tokens[0]}: {first.address} and" in refused_for(
        nodes=(first, shared, *others)
    )
    same = replace(second, host_id=first.host_id)
    assert f"host id {first.host_id}" in refused_for(nodes=(first, same, *others))
    none = refused_for(nodes=(replace(first, tokens=()), second, *others))
    assert "it has no tokens" in none
    lowest = replace(first, tokens=(MIN_TOKEN, *first.tokens))
    assert "nodetool move" in refused_for(nodes=(lowest, second, *others))
    assert "is no name for a rack" in refused_for(nodes=(replace(first, rack="a/b"), *others))


def test_what_is_not_of_this_world_refuses_the_import() -> None:
    assert "RandomPartitioner" in refused_for(partitioner="RandomPartitioner")
    versions = {**legacy().schema_versions, VERSION: ("127.0.7.2",)}
    assert f"{VERSION} on 127.0.7.2" in refused_for(schema_versions=versions)
    assert "no node tells" in refused_for(schema_versions={})
    assert "Give the rows of system_schema.keyspaces" in refused_for(keyspaces=())
    orders = next(each for each in legacy().keyspaces if each.name == "orders")
    for change, why in (
        ({"options": {"east": "4"}}, "replication factor 4 in east, which has 3"),
        ({"options": {"north": "1"}}, "replication factor 1 in north, which has 0"),
        ({"options": {"east": "3/1"}}, "transient"),
        ({"options": {}}, "no replicas"),
        ({"strategy": "EverywhereStrategy"}, "EverywhereStrategy"),
        ({"tablets": True}, "tablets"),
        ({"name": "_orders"}, "cannot have this name"),
    ):
        assert why in refused_for(keyspaces=(replace(orders, **change),))


def with_status(old: str, new: str) -> Joined:
    return join(texts()._replace(status=parse_status(sample("status.txt").replace(old, new))))


def texts() -> Texts:
    return Texts(
        status=parse_status(sample("status.txt")),
        ring=parse_ring(sample("ring.txt")),
        cluster=parse_describecluster(sample("describecluster.txt")),
        describering={},
        peers=parse_peers(sample("peers_v2.json")),
    )


def test_texts_that_contradict_each_other_refuse_the_import() -> None:
    assert join(texts()).problems == ()
    (rack,) = {p.what for p in with_status(" z1", " z2").problems if "ring" in p.where}
    assert rack == "127.0.7.6 is south z1 UN, and in status south z2 UN"
    assert "does not know it" in str(with_status("127.0.7.6", "127.0.7.8").problems)
    other = with_status("c6a45212", "c6a45213")
    assert "host id of 127.0.7.6" in str(other.problems)
    short = texts()._replace(ring=texts().ring[1:])
    assert "has 4 tokens, and 3 in the ring" in str(join(short).problems)
    described = parse_describering(sample("describering/orders.txt"))
    later = {"orders": replace(described, schema_version=VERSION)}
    assert len(join(texts()._replace(describering=later)).legacy.schema_versions) == 2


def as_texts(ring: Ring, rf: Mapping[str, int], rows: Iterable[RangeReplicas]) -> Texts:
    """A ring as nodetool prints one. Nodes n0, n1, … have addresses fd00::1, fd00::2, …"""
    status, tokens = "", ""
    for dc in sorted({place.dc for place in ring.locations.values()}):
        here = [n for n in ring.locations if ring.locations[n].dc == dc]
        owned = sorted((t, n) for t, n in ring.tokens.items() if n in here)
        status += (
            f"Datacenter: {dc}\n====\nStatus=Up/Down\n|/ State=Normal/Leaving/Joining/Moving\n"
        )
        status += "--  Address  Load  Tokens  Owns (effective)  Host ID  Rack\n"
        for n in here:
            count = sum(owner == n for _, owner in owned)
            rack = ring.locations[n].rack
            status += f"UN  {address(n)}  1 KiB  {count}  1.0%  {host_id(n)}  {rack}\n"
        tokens += f"\nDatacenter: {dc}\n==========\n{HEADER}{' ' * 60}{owned[-1][0]}\n"
        for token, n in owned:
            rack = ring.locations[n].rack
            tokens += f"{address(n)}  {rack}  Up  Normal  1 KiB  1.00%  {token}\n"
    options = ", ".join(f"{dc}={count}" for dc, count in rf.items())
    cluster = (
        f"Cluster Information:\n\tName: c\n\tPartitioner: x.Murmur3Partitioner\n\tSchema versions:\n"
        f"\t\t{VERSION}: [{address('n0')}]\nKeyspaces:\n"
        f"\tks -> Replication class: NetworkTopologyStrategy {{{options}}}\n"
    )
    described = f"Schema Version:{VERSION}\nTokenRange: \n"
    ends = sorted(ring.tokens)
    at = {row.end: row for row in rows}
    for start, end in pairwise((ends[-1], *ends)):
        hosts = ", ".join(map(address, at[end].reads))
        described += f"\tTokenRange(start_token:{start}, end_token:{end}, endpoints:[{hosts}],"
        described += f" rpc_endpoints:[{hosts}], endpoint_details:[])\n"
    return Texts(
        parse_status(status),
        parse_ring(tokens),
        parse_describecluster(cluster),
        {"ks": parse_describering(described)},
    )


HEADER = "Address  Rack  Status  State  Load  Owns  Token\n"


def address(node: str) -> str:
    return f"fd00:0:0:0:0:0:0:{int(node[1:]) + 1:x}"


def host_id(node: str) -> str:
    return str(uuid.UUID(int=int(node[1:])))


@given(rings(), some_rf)
def test_a_ring_that_nodetool_prints_comes_to_the_same_placement(
    ring: Ring, rf: dict[str, int]
) -> None:
    owners = {*ring.tokens.values()}
    nodes: dict[str, int] = {}
    for place in ring.locations.values():
        nodes[place.dc] = nodes.get(place.dc, 0) + 1
    rf = {dc: min(count, nodes[dc]) for dc, count in rf.items() if dc in nodes}
    if owners != {*ring.locations} or not rf:
        return
    wanted = placement_of(ring.tokens, ring.locations, rf)
    found = join(as_texts(ring, rf, wanted.rows))
    assert found.problems == ()
    image = image_of(imported(found.legacy))
    placement = image.placement_of("ks")
    assert placement is not None
    names = {host_id(n): n for n in ring.locations}
    assert [(row.start, row.end, [names[n] for n in row.reads]) for row in placement.rows] == [
        (row.start, row.end, [*row.reads]) for row in wanted.rows
    ]
    assert image.membership.locations() == {
        host_id(n): NodeLocation(place.dc, place.rack) for n, place in ring.locations.items()
    }
