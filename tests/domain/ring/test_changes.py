"""Placement changes in facts: nothing is lost in encoding, and the pieces of a change fit together."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from stele.domain.column import as_list, column_of
from stele.domain.model import ring as image_module
from stele.domain.model.ring import (
    NodeNumbered,
    PackedRanges,
    PackedRows,
    PlacementChanged,
    RingFact,
    RingImage,
    packed,
    pieces_of,
    placement_changed,
    to_facts,
    unpacked,
)
from stele.domain.ring.columns import NO_NODES, NodeNumbers
from stele.domain.ring.placement import (
    EMPTY_RING,
    Placement,
    PlacementChange,
    PlacementError,
    change_of,
    changed,
    rows_of,
)
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas, range_of
from stele.domain.ring.transition import PlacementDelta
from tests.domain.ring import plain
from tests.domain.ring.test_placement import NODES, difference, placements, row_changes

Rows = tuple[RangeReplicas, ...]

WHOLE = plain.packed_ranges([Range(MIN_TOKEN, MIN_TOKEN)])


@st.composite
def shards_of(draw: st.DrawFn, count: int) -> dict[str, tuple[int, ...]]:
    """Return shards as rows keep them."""
    numbers = st.tuples(*[st.integers(0, 300)] * count)
    shards, onto = draw(numbers | st.just((0,) * count)), draw(numbers | st.none())
    moves = onto is not None and onto != shards
    return {"shards": shards if any(shards) else (), "other_shards": (onto or ()) if moves else ()}


@st.composite
def moving(draw: st.DrawFn) -> Rows:
    """Return rows, some of which move: readers other than the first writers, another side, other shards."""
    several = draw(st.booleans())
    return tuple(
        msgspec.structs.replace(
            row,
            **(draw(shards_of(len(row.writes))) if several else {}),
            reads=tuple(draw(st.permutations(row.writes)))[: draw(st.integers(0, 4))],
            other=tuple(draw(st.permutations(row.writes)))[: draw(st.integers(0, 2))],
            version_before=draw(st.integers(0, 3)),
        )
        for row in draw(placements())
    )


def delta_of(change: PlacementChange) -> PlacementDelta:
    """Return the change with names of nodes."""
    bounds = change.removed.starts.tolist(), change.removed.ends.tolist()
    return PlacementDelta(
        tuple(map(Range, *bounds)), tuple(rows_of(change.rows, change.ends, change.nodes))
    )


def whole(rows: Rows, nodes: NodeNumbers) -> PlacementChange:
    """Return the change that creates a placement with these rows."""
    return change_of((Range(MIN_TOKEN, MIN_TOKEN),), rows, nodes)


@given(rows=moving(), known=st.permutations(NODES), count=st.integers(0, 5))
def test_packed_rows_unpack_to_the_same_rows(rows: Rows, known: list[str], count: int) -> None:
    change = whole(rows, NodeNumbers(tuple(known[:count])))
    assert change.nodes.names[:count] == tuple(known[:count])
    written_down = packed(change.rows, change.ends)
    assert written_down == plain.packed(rows, change.nodes)
    shown = msgspec.json.encode(written_down, enc_hook=as_list)
    read = msgspec.json.decode(shown, type=PackedRows, dec_hook=column_of)
    assert read == written_down
    again = unpacked(WHOLE, read, change.nodes)
    assert delta_of(again).added == plain.unpacked(read, change.nodes) == rows
    assert changed(EMPTY_RING, again) == Placement.of(rows)
    assert (
        changed(EMPTY_RING, again).table.hash_sum()
        == Placement.of(rows, change.nodes).table.hash_sum()
    )


@given(rows=moving(), data=st.data())
def test_explicit_reads_equal_to_the_first_writes_give_the_same_rows(
    rows: Rows, data: st.DataObject
) -> None:
    """Production omits reads that equal the first writes, but any writer must give the same state."""
    nodes, reads, listed = NodeNumbers(NODES), list[int](), list[int]()
    for row in rows:
        alone = row.reads != row.writes[: len(row.reads)] or data.draw(st.booleans())
        reads.append(-len(row.reads) if alone else len(row.reads))
        names = (*row.writes, *(row.reads if alone else ()), *row.other)
        listed += [nodes.numbers[name] for name in names]
    written_down = msgspec.structs.replace(
        plain.packed(rows, nodes), reads=plain.column(reads), nodes=plain.column(listed)
    )
    change = unpacked(WHOLE, written_down, nodes)
    assert delta_of(change).added == rows
    assert (
        changed(EMPTY_RING, change).table.hash_sum() == Placement.of(rows, nodes).table.hash_sum()
    )


@given(change=row_changes(), data=st.data())
def test_fact_gives_the_same_rows_in_any_order(
    change: tuple[Rows, Rows], data: st.DataObject
) -> None:
    before, after = change
    removed, added = difference(before, after)
    nodes = NodeNumbers(NODES)
    rows = data.draw(st.permutations(added))
    gone = plain.packed_ranges(data.draw(st.permutations(removed)))
    fact = PlacementChanged("p", gone, plain.packed(rows, nodes))
    image = RingImage(Map(p=Placement.of(before, nodes)), nodes)
    now = placement_changed(image, fact).placements["p"]
    assert now.rows == plain.applied(before, removed, added) == after
    assert now.table.hash_sum() == Placement.of(after, nodes).table.hash_sum()


def test_node_needs_a_number_before_rows_name_it() -> None:
    row, both = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a", "b")), NodeNumbers(("a", "b"))
    facts = list(RingImage(nodes=NO_NODES.with_node(0, "b")).creation("p", Placement.of([row])))
    assert facts[0] == NodeNumbered(1, "a")
    assert [type(fact) for fact in facts[1:]] == [PlacementChanged]
    rows = plain.packed([row], both)
    with pytest.raises(PlacementError, match="an unknown number"):
        unpacked(WHOLE, rows, NodeNumbers(("a",)))
    nobody = msgspec.structs.replace(rows, nodes=plain.column((0, -1)))
    with pytest.raises(PlacementError, match="an unknown number"):
        unpacked(WHOLE, nobody, both)


@pytest.mark.parametrize(
    "flaw",
    [
        {"ends": ()},
        {"versions": (1, 2)},
        {"nodes": (0,)},
        {"others": (-1,)},
        {"writes": (-2,)},
        {"writes": (1 << 62,)},
        {"reads": (-(1 << 63),)},
        {"reads": (-128,)},
        {"shards": (1,)},
    ],
)
def test_columns_of_different_lengths_are_refused(flaw: dict[str, tuple[int, ...]]) -> None:
    row, nodes = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a", "b")), NodeNumbers(("a", "b"))
    columns = {name: plain.column(numbers) for name, numbers in flaw.items()}
    rows = msgspec.structs.replace(plain.packed([row], nodes), **columns)
    with pytest.raises(PlacementError, match="different lengths"):
        unpacked(WHOLE, rows, nodes)


def test_removed_ranges_with_different_numbers_of_ends_are_refused() -> None:
    row, nodes = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a",)), NodeNumbers(("a",))
    with pytest.raises(PlacementError, match="different lengths"):
        unpacked(
            PackedRanges(plain.column((1, 2)), plain.column((2,))),
            plain.packed([row], nodes),
            nodes,
        )


@given(change=row_changes(), at_most=st.integers(2, 6))
def test_pieces_of_a_change_are_small_and_fit_together(
    change: tuple[Rows, Rows], at_most: int
) -> None:
    before, after = change
    placement = Placement.of(before)
    removed, added = difference(before, after)
    delta = PlacementDelta(tuple(removed), tuple(added))
    columns = change_of(removed, added, placement.nodes)
    pieces = list(pieces_of(placement, columns, at_most))
    assert [delta_of(piece) for piece in pieces] == [*plain.pieces_of(before, delta, at_most)]
    for piece in pieces:
        assert len(piece.rows) <= at_most
        assert len(piece.removed) <= at_most
        placement = changed(placement, piece)
    assert placement.rows == after


@given(rows=placements(), at_most=st.integers(2, 6))
def test_placement_is_created_and_removed_in_pieces(rows: Rows, at_most: int) -> None:
    placement = EMPTY_RING
    for piece in pieces_of(placement, whole(rows, placement.nodes), at_most):
        placement = changed(placement, piece)
    assert placement.rows == rows
    back = change_of([range_of(row) for row in rows], EMPTY_RING.rows, placement.nodes)
    for piece in pieces_of(placement, back, at_most):
        assert max(len(piece.rows), len(piece.removed)) <= at_most
        placement = changed(placement, piece)
    assert placement == EMPTY_RING


def test_pieces_need_room_for_two_and_existing_rows() -> None:
    some = change_of((Range(MIN_TOKEN, 0),), (), NO_NODES)
    with pytest.raises(PlacementError, match="it is no row"):
        list(pieces_of(EMPTY_RING, some, 2))
    with pytest.raises(ValueError, match="room for 2"):
        list(pieces_of(EMPTY_RING, some, 1))


def folded(image: RingImage, facts: list[RingFact]) -> RingImage:
    for fact in facts:
        match fact:
            case NodeNumbered():
                image = msgspec.structs.replace(
                    image, nodes=image.nodes.with_node(fact.number, fact.node_id)
                )
            case PlacementChanged():
                image = placement_changed(image, fact)
    return image


@given(
    rows=moving(),
    known=st.permutations(NODES),
    order=st.permutations(NODES),
    count=st.integers(0, 5),
)
def test_created_placement_does_not_depend_on_its_node_numbers(
    rows: Rows, known: list[str], order: list[str], count: int
) -> None:
    """Known nodes keep their numbers, and only named nodes get new ones."""
    image = RingImage(nodes=NodeNumbers(tuple(known[:count])))
    placement = Placement.of(rows, NodeNumbers(tuple(order)))
    image = folded(image, list(image.creation("p", placement)))
    assert image.placements["p"].rows == rows
    named = {name for row in rows for name in (*row.writes, *row.other)}
    assert {*image.nodes.names} == {*known[:count]} | named
    assert (
        image.placements["p"].table.hash_sum() == Placement.of(rows, image.nodes).table.hash_sum()
    )


def test_equal_one_row_placements_share_their_table_after_a_change() -> None:
    here, there = (Placement.of([whole_row("a", "b")]), Placement.of([whole_row("b", "a")]))
    image = RingImage(nodes=NodeNumbers(("a", "b")))
    for name, placement in (("p", here), ("q", there), ("r", here)):
        image = folded(image, list(image.creation(name, placement)))
    tables = {name: each.table for name, each in image.placements.items()}
    assert tables["p"] is tables["r"] is not tables["q"]
    moved = folded(image, list(image.replacement("q", tables["p"].all())))
    assert moved.placements["q"].table is tables["p"]
    assert moved.placements["q"] == here
    assert image.placements["q"] == there


def test_shared_table_is_refused_if_the_reader_lacks_its_nodes() -> None:
    """Every reader must stop at the same record, whatever it has read of other logs."""
    image = RingImage(nodes=NodeNumbers(("a", "b")))
    facts = list(image.creation("p", Placement.of([whole_row("a", "b")])))
    assert folded(image, facts).placements["p"].rows == (whole_row("a", "b"),)
    with pytest.raises(PlacementError, match="unknown number"):
        folded(RingImage(nodes=NodeNumbers(("a",))), facts)


def whole_row(*nodes: str) -> RangeReplicas:
    """Return the row of a placement with one row."""
    return RangeReplicas(MIN_TOKEN, MIN_TOKEN, nodes, nodes)


@given(before=moving(), after=moving())
def test_replacement_changes_all_rows_in_pieces(before: Rows, after: Rows) -> None:
    nodes = NodeNumbers(NODES)
    image = RingImage(Map(p=Placement.of(before, nodes)), nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_module, "ROWS_PER_FACT", 3)
        facts = list(image.replacement("p", Placement.of(after, nodes).table.all()))
    assert folded(image, facts).placements["p"].rows == after
    assert max(len(f.removed) for f in facts if isinstance(f, PlacementChanged)) <= 3


@given(rows=moving())
def test_snapshot_of_rows_gives_the_same_rows(rows: Rows) -> None:
    nodes = NodeNumbers(NODES)
    image = RingImage(Map(p=Placement.of(rows, nodes)), nodes)
    again = folded(RingImage(), list(to_facts(image)))
    assert again.placements["p"].rows == rows
    assert again.nodes == nodes


def test_remaining_part_of_a_row_between_two_pieces_keeps_its_replicas() -> None:
    rows = [
        RangeReplicas(MIN_TOKEN, 0, ("a",), ("a",)),
        RangeReplicas(0, MIN_TOKEN, ("b",), ("b",), 3),
    ]
    placement = Placement.of(rows)
    added = [
        RangeReplicas(start, end, ("c",), ("c",), 4)
        for start, end in ((0, 5), (5, 9), (9, MIN_TOKEN))
    ]
    first, second = pieces_of(placement, change_of([range_of(rows[1])], added, placement.nodes), 2)
    rest = RangeReplicas(5, MIN_TOKEN, ("b",), ("b",), 3)
    assert delta_of(first) == PlacementDelta((range_of(rows[1]),), (added[0], rest))
    assert delta_of(second) == PlacementDelta((range_of(rest),), tuple(added[1:]))
