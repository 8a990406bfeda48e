"""Each flaw on its own: a sound state, one edit, and the message and place of the flaw."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from stele.domain.commands import CreateKeyspace, CreateTable
from stele.domain.described_state import Described, Placed, checked, described
from stele.domain.image import Image
from stele.domain.model.schema import TableOptions, tablet_map
from stele.domain.names import NodeState
from stele.domain.ring.placement import Placement, PlacementError
from stele.domain.ring.ranges import MIN_TOKEN, RangeReplicas
from stele.domain.soundness import flaws_of, row_flaws, under_way
from tests.domain.history import joining, three_nodes

replace = msgspec.structs.replace


@cache
def sound() -> Image:
    history, _ = three_nodes()
    assert (
        history.apply(CreateKeyspace("shop", {"dc1": 2}, tablets=True, initial_tablets=4)) is None
    )
    assert history.apply(CreateTable("shop.orders")) is None
    assert history.apply(CreateTable("library.books")) is None
    assert not [*flaws_of(history.image)]
    return history.image


def with_node(image: Image, node_id: str, **changes: Any) -> Image:
    node = replace(image.membership.nodes[node_id], **changes)
    members = replace(image.membership, nodes=image.membership.nodes.set(node_id, node))
    return replace(image, membership=members)


def without_node(image: Image, node_id: str) -> Image:
    members = replace(image.membership, nodes=image.membership.nodes.delete(node_id))
    return replace(image, membership=members)


def with_table(image: Image, **changes: Any) -> Image:
    table = image.schema.table_named("shop.orders")
    assert table is not None
    changed = replace(table, **changes)
    tables = image.schema.tables.set(table.table_id, changed)
    return replace(image, schema=replace(image.schema, tables=tables))


def table_id(image: Image, name: str) -> str:
    table = image.schema.table_named(name)
    assert table is not None
    return table.table_id


def with_keyspace(image: Image, **changes: Any) -> Image:
    keyspace = image.schema.named("library")
    assert keyspace is not None
    by_id = image.schema.by_id.set(keyspace.keyspace_id, replace(keyspace, **changes))
    return replace(image, schema=replace(image.schema, by_id=by_id))


def with_row(image: Image, **changes: Any) -> Image:
    """Return a state with other values in the row of the first tablet."""
    name = next(name for name in image.ring.placements if name.startswith("tablets:"))
    first, *others = image.ring.placements[name].rows
    numbers = image.ring.nodes.with_nodes(("ghost",))
    made = Placement.of((replace(first, **changes), *others), numbers)
    return replace(
        image, ring=replace(image.ring, placements=image.ring.placements.set(name, made))
    )


def with_versions(image: Image, **changes: Any) -> Image:
    return replace(image, topology=replace(image.topology, **changes))


TOKEN = 77
EDITS: dict[str, tuple[Callable[[Image], Image], str]] = {
    "unknown node in a placement": (
        lambda image: with_row(image, reads=("ghost", "n1"), writes=("ghost", "n1")),
        "there is no node ghost",
    ),
    "missing node": (lambda image: without_node(image, "n2"), "there is no node n2"),
    "left node": (
        lambda image: with_node(image, "n2", state=NodeState.LEFT, tokens=()),
        "node n2 has left",
    ),
    "no readers": (lambda image: with_row(image, reads=(), writes=()), "nobody serves its reads"),
    "unknown shard": (
        lambda image: with_row(image, reads=("n1",), writes=("n1",), shards=(3,)),
        "node n1 has 1 shards, and a replica on 3",
    ),
    "row with a future version": (
        lambda image: with_row(image, version=10**6),
        "are not in order below the topology's version",
    ),
    "token of two nodes": (
        lambda image: with_node(
            with_node(image, "n1", tokens=(TOKEN,), num_tokens=1),
            "n2",
            tokens=(TOKEN,),
            num_tokens=1,
        ),
        "node n2: its token 77 is also that of n1",
    ),
    "duplicate token": (
        lambda image: with_node(image, "n1", tokens=(TOKEN, TOKEN), num_tokens=2),
        "it has a token twice",
    ),
    "token at the lower bound": (
        lambda image: with_node(image, "n1", tokens=(MIN_TOKEN,), num_tokens=1),
        "node n1: its tokens are not all from",
    ),
    "wrong num_tokens": (
        lambda image: with_node(image, "n1", num_tokens=999),
        "num_tokens says 999",
    ),
    "address of two nodes": (
        lambda image: with_node(image, "n1", address="http://n3"),
        "node n3: its address http://n3 is also that of n1",
    ),
    "host of two nodes": (
        lambda image: with_node(image, "n1", host_id="host-n3"),
        "its host id host-n3 is also that of n1",
    ),
    "bad name of a rack": (lambda image: with_node(image, "n1", rack="a b"), "for a rack"),
    "excluded in the future": (
        lambda image: with_node(image, "n1", excluded_since=10**6),
        "which is to come",
    ),
    "fence above the version": (
        lambda image: with_versions(image, fence_version=10**6),
        "topology: the fence is at version 1000000",
    ),
    "version of a future epoch": (
        lambda image: with_versions(image, since_epoch=10**6),
        "topology: its epochs are after epoch",
    ),
    "unknown placement": (
        lambda image: with_keyspace(image, placement="dc9:9"),
        "there is no placement dc9:9",
    ),
    "replication factor 0": (
        lambda image: with_keyspace(image, replication={"dc1": 0}),
        "leave out a dc that has no replicas",
    ),
    "truncated in the future": (
        lambda image: with_table(image, truncated_version=10**6),
        "its truncated_version 1000000 is above",
    ),
    "table without its map": (
        lambda image: with_table(image, placement=""),
        "it has no tablet map, and its keyspace says tablets: True",
    ),
    "map of another table": (
        lambda image: with_table(image, placement="tablets:nobody"),
        "there is no table nobody in its keyspace",
    ),
    "co-located with a table of another keyspace": (
        lambda image: with_table(image, placement=tablet_map(table_id(image, "library.books"))),
        "in its keyspace, with which it is co-located",
    ),
    "two keyspaces with one name": (
        lambda image: replace(
            image,
            schema=replace(
                image.schema,
                by_id=image.schema.by_id.set(
                    "twin",
                    replace(image.schema.named("library"), keyspace_id="twin"),  # type: ignore[type-var, arg-type]
                ),
            ),
        ),
        "keyspace library: several have this name",
    ),
    "tokens that do not match the rows": (
        lambda image: with_node(
            with_node(image, "n1", tokens=image.membership.nodes["n2"].tokens),
            "n2",
            tokens=image.membership.nodes["n1"].tokens,
        ),
        "and by the nodes' tokens, dcs and racks it is",
    ),
    "token that does not match its range": (
        lambda image: with_node(
            image, "n1", tokens=(TOKEN, *image.membership.nodes["n1"].tokens[1:])
        ),
        "the nodes' tokens do not make this range",
    ),
    "node in another dc": (
        lambda image: with_node(image, "n1", dc="dc2"),
        "and by the nodes' tokens, dcs and racks it is",
    ),
    "replica on a node that is not a member yet": (
        lambda image: with_node(image, "n1", state=NodeState.NONE),
        "the nodes' tokens do not make this range",
    ),
    "replication that does not match the placement": (
        lambda image: with_keyspace(image, replication={"dc1": 2}),
        "its placement is dc1:3, and by its replication it is dc1:2",
    ),
    "no replication": (lambda image: with_keyspace(image, replication={}), "no replicas in any dc"),
    "initial tablets without tablets": (
        lambda image: with_keyspace(image, initial_tablets=4),
        "initial_tablets is 4",
    ),
    "tablet with more writers than readers": (
        lambda image: with_row(image, reads=("n1",), writes=("n1", "n2")),
        "it is not read from all who are written to",
    ),
    "invalid table options": (
        lambda image: with_table(image, options=TableOptions(min_tablet_count=-5)),
        "Options of a table are from 0",
    ),
    "greatest possible version": (
        lambda image: with_versions(image, version=(1 << 63) - 1),
        "topology: its version 9223372036854775807 is above",
    ),
    "unused placement": (
        lambda image: replace(
            image,
            ring=replace(
                image.ring,
                placements=image.ring.placements.set("dc1:1", image.ring.placements["dc1:3"]),
            ),
        ),
        "placement dc1:1: no keyspace and no table has it",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_edit_is_found_as_a_flaw(name: str) -> None:
    edit, said = EDITS[name]
    found = [*map(str, flaws_of(edit(sound())))]
    assert any(said in flaw for flaw in found), found


UNDER_WAY: dict[str, tuple[Callable[[Image], Image], str]] = {
    "missing request": (
        lambda image: replace(image, requests=replace(image.requests, unfinished_by_id=Map())),
        "a transition carries it out, and it is not there",
    ),
    "missing node of a request": (
        lambda image: without_node(image, "n4"),
        "no node n4, which it is about",
    ),
    "missing placement of a plan": (
        lambda image: replace(
            image,
            ring=replace(image.ring, placements=image.ring.placements.delete("dc1:3")),
        ),
        "there is no placement dc1:3, which it plans for",
    ),
}


@pytest.mark.parametrize("name", UNDER_WAY)
def test_dangling_reference_of_a_transition_is_found(name: str) -> None:
    image = joining()
    assert not [*flaws_of(image)]
    assert [*under_way(image)]
    edit, said = UNDER_WAY[name]
    found = [*map(str, flaws_of(edit(image)))]
    assert any(said in flaw for flaw in found), found


def test_duplicate_entity_is_named_with_both_places() -> None:
    state = described(sound())
    facts = [Placed(fact, f"line {n}") for n, (fact, _) in enumerate(state.facts)]
    at = next(n for n, (fact, _) in enumerate(facts) if type(fact).__name__ == "NodeChanged")
    twice = state._replace(facts=[*facts, Placed(facts[at].fact, "line 900")])
    assert [*map(str, checked(twice).flaws)] == [
        f"line 900: node n1 is there already, in line {at}"
    ]


def test_fact_with_a_missing_dependency_is_named() -> None:
    state = described(sound())
    facts = [
        Placed(fact, f"line {n}")
        for n, (fact, _) in enumerate(state.facts)
        if type(fact).__name__ != "KeyspaceChanged"
    ]
    found = checked(state._replace(facts=facts))
    assert found.image is None
    assert "TableChanged names" in str(found.flaws[0])


ends = st.integers(MIN_TOKEN, MIN_TOKEN + 6)
nodes = st.lists(st.sampled_from("abc"), max_size=3).map(tuple)
rows = st.lists(st.builds(RangeReplicas, ends, ends, nodes, nodes), max_size=4)


@given(rows)
def test_rows_are_a_placement_only_without_flaws(
    some: list[RangeReplicas],
) -> None:
    flaws = [*row_flaws("p", some)]
    try:
        Placement.of(sorted(some, key=lambda row: row.start))
    except PlacementError:
        assert flaws
    else:
        assert not flaws


HUGE = 1 << 70


@pytest.mark.parametrize(
    "row",
    [
        RangeReplicas(MIN_TOKEN - 1, MIN_TOKEN, ("a",), ("a",)),
        RangeReplicas(MIN_TOKEN, HUGE, ("a",), ("a",)),
        RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a",), version=HUGE),
        RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a",), version_before=-1),
        RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a",), shards=(1 << 40,)),
    ],
)
def test_numbers_too_large_for_a_row_are_flaws(row: RangeReplicas) -> None:
    assert [*row_flaws("p", [row])]


def test_numbers_too_large_for_a_record_are_flaws() -> None:
    state = described(with_node(sound(), "n1", cleanup_since=HUGE))
    assert "does not fit in 8 bytes" in str(checked(state).flaws[0])
    assert "there is none with the number" in str(checked(state._replace(epoch=-1)).flaws[0])


def test_overlap_names_both_ranges() -> None:
    some = [
        RangeReplicas(MIN_TOKEN, 10, ("a",), ("a",)),
        RangeReplicas(5, MIN_TOKEN, ("a",), ("a",)),
    ]
    (flaw,) = row_flaws("p", some)
    least = MIN_TOKEN
    assert str(flaw) == f"placement p, range (5, {least}]: it overlaps ({least}, 10]"


def test_empty_state_is_sound() -> None:
    assert checked(Described(0, bytes(16), [], (), {})).flaws == ()
