"""The import of a legacy cluster: the state that it becomes, and the reasons that prevent an import."""

from __future__ import annotations

import uuid
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given

from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.legacy import (
    FORMAT,
    ImportResult,
    LegacyCluster,
    LegacyKeyspace,
    LegacyNode,
    LegacyRange,
    import_cluster,
)
from stele.domain.model.schema import ColumnDefinition, TableCreation
from stele.domain.model.schema_objects import ColumnKind
from stele.domain.names import NodeState
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.ring.strategy import NodeLocation, placement_of
from stele.domain.rules.ring import locations_now
from stele.domain.snapshot import facts_to_image, image_to_facts, state_hash
from tests.domain.legacy.samples import VERSION, example, simple_strategy_ranges, with_node
from tests.domain.ring.rings import Ring, rings, some_rf

replace = msgspec.structs.replace
DOWN = with_node("127.0.7.5", status="DN", schema_version="")


def image_of(result: ImportResult) -> Image:
    assert result.problems == ()
    assert result.differences == ()
    assert result.image is not None
    return result.image


def reasons(result: ImportResult) -> str:
    assert result.image is None
    return "\n".join(map(str, (*result.problems, *result.differences)))


def with_keyspace(name: str, /, **changes: object) -> LegacyCluster:
    """Return the example with this keyspace only, with other values of it."""
    keyspace = next(each for each in example().keyspaces if each.name == name)
    return replace(example(), keyspaces=(replace(keyspace, **changes),))


def test_legacy_cluster_becomes_a_state_at_rest() -> None:
    result = import_cluster(example())
    image = image_of(result)
    assert result.left_out == ("system", "system_schema")
    assert result.compared == {"audit": 24, "orders": 24, "system_auth": 24}
    assert image.cluster == "Shop Prod"
    assert (image.topology.version, image.topology.fence_version) == (1, 1)
    assert {node.state for node in image.membership.nodes.values()} == {NodeState.NORMAL}
    node = image.membership.nodes["c6a45212-e8a6-41ce-94be-e749de55f2e6"]
    assert (node.host_id, node.address, node.dc) == (node.node_id, "127.0.7.6", "south")
    assert node.release_version == "5.0.2"
    assert {*image.ring.placements} == {"east:2,south:1,west:2", "east:3,south:1"}
    assert {*image.schema.ids} == {*result.compared}
    assert image.schema.serving("orders") is not None


def test_import_of_the_same_cluster_gives_the_same_state() -> None:
    legacy = example()
    image = image_of(import_cluster(legacy))
    again = replace(legacy, nodes=legacy.nodes[::-1], keyspaces=legacy.keyspaces[::-1])
    assert state_hash(image_of(import_cluster(again))) == state_hash(image)
    restored = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
    assert state_hash(restored) == state_hash(image) != state_hash(EMPTY_FOR_FOLLOWERS)


def test_import_of_the_same_schema_gives_the_same_state() -> None:
    columns = (ColumnDefinition(name="id", type="uuid", kind=ColumnKind.PARTITION_KEY),)
    schemas = {
        name: (TableCreation(name=f"{name}.items", columns=columns),)
        for name in ("orders", "audit")
    }
    image = image_of(import_cluster(example(), schemas=schemas))
    again = import_cluster(example(), schemas={"audit": schemas["audit"], **schemas})
    assert state_hash(image_of(again)) == state_hash(image)
    assert {*image.schema.table_ids} == {"orders.items", "audit.items"}
    assert image.features.enabled == (SCHEMA_OBJECTS,)


def test_keyspace_without_ranges_is_refused_unless_left_out() -> None:
    legacy = replace(
        example(),
        keyspaces=tuple(
            replace(each, ranges=()) if each.name == "audit" else each
            for each in example().keyspaces
        ),
    )
    assert "keyspace audit: its `ranges` are missing" in reasons(import_cluster(legacy))
    image = image_of(import_cluster(legacy, without=["audit"]))
    assert {*image.schema.ids} == {"orders", "system_auth"}
    assert "there is no such keyspace" in reasons(import_cluster(example(), without=["music"]))


def test_every_difference_in_replicas_is_reported() -> None:
    first, *others = next(each for each in example().keyspaces if each.name == "orders").ranges
    wrong = replace(first, replicas=(*first.replicas[:-1], "127.0.7.1"))
    result = import_cluster(with_keyspace("orders", ranges=(wrong, *others[1:])))
    assert result.problems == ()
    changed, missing = sorted(result.differences, key=lambda each: each.legacy is None)
    assert (changed.start, changed.end) == (first.start, first.end)
    assert changed.legacy == tuple(sorted(wrong.replicas))
    assert changed.computed == tuple(sorted(first.replicas))
    assert (missing.start, missing.end) == (others[0].start, others[0].end)
    assert "legacy no such range" in reasons(result)


def test_simple_strategy_differs_over_racks_and_is_refused_over_dcs() -> None:
    ranges = simple_strategy_ranges()
    simple = with_keyspace(
        "orders", strategy="SimpleStrategy", options={"replication_factor": "2"}, ranges=ranges
    )
    assert "SimpleStrategy over 3 dcs" in reasons(import_cluster(simple))
    one_dc = replace(simple, nodes=tuple(replace(node, dc="all") for node in simple.nodes))
    result = import_cluster(one_dc)
    assert result.problems == ()
    assert 0 < len(result.differences) < len(ranges), "1 and 2 are neighbours in the same rack"
    one_rack = replace(one_dc, nodes=tuple(replace(node, rack="r1") for node in one_dc.nodes))
    assert image_of(import_cluster(one_rack)).schema.replications() == {"all:2": {"all": 2}}


def test_down_node_becomes_a_member_only_if_ignored() -> None:
    assert "127.0.7.5: it is down (DN)" in reasons(import_cluster(DOWN))
    assert "the versions of 127.0.7.5 are not known" in reasons(import_cluster(DOWN))
    expected = state_hash(image_of(import_cluster(example())))
    for name in ("127.0.7.5", "93d54e74-4dbd-4ecf-9f71-ce8f7fd69a0c"):
        assert state_hash(image_of(import_cluster(DOWN, ignored=[name]))) == expected
    unknown = import_cluster(example(), ignored=["127.0.7.9"])
    assert "there is no such node" in reasons(unknown)


def test_joining_node_prevents_the_import_and_adds_no_differences() -> None:
    joining = replace(
        example().nodes[0],
        host_id="cecede93-3bc2-4b8d-9975-3f453056df90",
        address="127.0.7.7",
        status="UJ",
        tokens=(-3500000000000000071, 1100000000000000072),
        schema_version="",
    )
    legacy = replace(example(), nodes=(*example().nodes, joining))
    result = import_cluster(legacy, ignored=["127.0.7.7"])
    assert result.differences == ()
    (only,) = result.problems
    assert "it is joining (UJ)" in only.what


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "UL"}, "it is leaving"),
        ({"status": "DL"}, "it is leaving"),
        ({"status": "UM"}, "it is moving"),
        ({"status": "?N"}, "its state is not known (?N)"),
        ({"status": "U?"}, "its state is not known (U?)"),
        ({"tokens": ()}, "it has no tokens"),
        ({"tokens": (MIN_TOKEN,)}, "nodetool move"),
        ({"rack": "a/b"}, "is no name for a rack"),
        ({"schema_version": VERSION.replace("1", "2")}, "there are 2 schema versions"),
        (
            {"tokens": (-9100000000000000001,)},
            "token -9100000000000000001: 127.0.7.2 and 127.0.7.1",
        ),
        ({"address": "127.0.7.1"}, "address 127.0.7.1: 3c1c0d95-87ec-40b6-b7dc-4edc29e49099 and"),
        ({"host_id": "a5475e99-1ad1-46fe-b75e-0b3f68e40ac2"}, "host id a5475e99"),
    ],
)
def test_invalid_node_prevents_the_import(changes: dict[str, object], reason: str) -> None:
    assert reason in reasons(import_cluster(with_node("127.0.7.2", **changes)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"options": {"east": "4"}},
            "its replication factor in east is 4, above the 3 of its nodes with tokens",
        ),
        (
            {"options": {"north": "1"}},
            "its replication factor in north is 1, above the 0 of its nodes with tokens",
        ),
        ({"options": {"east": "3/1"}}, "transient"),
        ({"options": {}}, "it has no replicas"),
        ({"strategy": "EverywhereStrategy"}, "EverywhereStrategy is not supported"),
        ({"tablets": True}, "tablets"),
        ({"name": "_orders"}, "does not allow this name"),
    ],
)
def test_unsupported_keyspace_prevents_the_import(changes: dict[str, object], reason: str) -> None:
    assert reason in reasons(import_cluster(with_keyspace("orders", **changes)))


def test_another_partitioner_or_no_keyspaces_prevents_the_import() -> None:
    other = replace(example(), partitioner="RandomPartitioner")
    assert "RandomPartitioner" in reasons(import_cluster(other))
    assert "there are no keyspaces" in reasons(import_cluster(replace(example(), keyspaces=())))


def described(ring: Ring, rf: dict[str, int]) -> LegacyCluster:
    """Return a ring with one keyspace ``ks``, whose ranges are those of its placement."""
    at = {row.end: row for row in placement_of(ring.tokens, ring.locations, rf).rows}
    ends = sorted(ring.tokens)
    return LegacyCluster(
        format=FORMAT,
        cluster="c",
        partitioner="Murmur3Partitioner",
        nodes=tuple(
            LegacyNode(
                host_id=host_id(name),
                address=name,
                dc=place.dc,
                rack=place.rack,
                status="UN",
                tokens=tuple(token for token, owner in ring.tokens.items() if owner == name),
                schema_version=VERSION,
            )
            for name, place in ring.locations.items()
        ),
        keyspaces=(
            LegacyKeyspace(
                name="ks",
                strategy="NetworkTopologyStrategy",
                options={dc: str(count) for dc, count in rf.items()},
                ranges=tuple(
                    LegacyRange(start, end, (*at[end].reads,))
                    for start, end in pairwise((ends[-1], *ends))
                ),
            ),
        ),
    )


def host_id(node: str) -> str:
    return str(uuid.UUID(int=int(node[1:])))


@given(rings(), some_rf)
def test_described_ring_becomes_the_same_placement(ring: Ring, rf: dict[str, int]) -> None:
    owners = {*ring.tokens.values()}
    nodes: dict[str, int] = {}
    for place in ring.locations.values():
        nodes[place.dc] = nodes.get(place.dc, 0) + 1
    rf = {dc: min(count, nodes[dc]) for dc, count in rf.items() if dc in nodes}
    if owners != {*ring.locations} or not rf:
        return
    expected = placement_of(ring.tokens, ring.locations, rf)
    image = image_of(import_cluster(described(ring, rf)))
    placement = image.placement_of("ks")
    assert placement is not None
    names = {host_id(n): n for n in ring.locations}
    assert [(row.start, row.end, [names[n] for n in row.reads]) for row in placement.rows] == [
        (row.start, row.end, [*row.reads]) for row in expected.rows
    ]
    assert locations_now(image) == {
        host_id(n): NodeLocation(place.dc, place.rack) for n, place in ring.locations.items()
    }
