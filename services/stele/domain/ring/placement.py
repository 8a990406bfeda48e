"""The placement: the replicas of every range of the ring (reference: cassandra_tcm 5.1, 5.2).

It is chunked columns: a row's end is the next row's start, and nodes stand there by number.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints
from stele.domain.ring.columns import Columns, Keys, Rows, merged
from stele.domain.ring.numbers import NO_NODES, PAD, NodeNumbers, Numbers, lengths
from stele.domain.ring.ranges import Range, RangeReplicas, upper_bound
from stele.domain.ring.replicas import (
    LISTED,
    OTHER,
    OTHER_SHARDS,
    READS,
    READS_COUNT,
    SHARDS,
    VERSION,
    VERSION_BEFORE,
    WRITES,
    encoded,
    first_unsound,
    on_nodes,
    reads_of,
    replica_columns,
)
from stele.domain.ring.spans import (
    PlacementError,
    Ranges,
    Span,
    check_same_span,
    ranges_by_column,
    spans_of,
    text_of,
)
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN

Which = npt.NDArray[np.bool_]
_START: Final = attrgetter("start")


def _cover(starts: Keys, ends: Keys) -> bool:
    """True when each row begins where the one before ended, from MIN_TOKEN to infinity."""
    return (
        len(starts) > 0
        and int(starts[0]) == int(ends[-1]) == MIN_TOKEN
        and np.array_equal(starts[1:], ends[:-1])
        and bool((starts[1:] > starts[:-1]).all())
    )


def _check_cover(rows: Sequence[RangeReplicas]) -> None:
    """Says where the rows do not do what ``_cover`` asks for."""
    expected = MIN_TOKEN
    for index, row in enumerate(rows):
        if index and expected == MIN_TOKEN:
            raise PlacementError(f"Row {index}, {text_of(row)}, comes after the ring's end.")
        if row.start != expected:
            flaw = "leaves a gap after" if row.start > expected else "is out of order or overlaps"
            raise PlacementError(f"Row {index}, {text_of(row)}, {flaw} {expected}.")
        if row.start >= upper_bound(row.end):
            raise PlacementError(f"Row {index}, {text_of(row)}, is no range: it holds no token.")
        expected = row.end
    if not rows or expected != MIN_TOKEN:
        raise PlacementError(
            f"The rows do not cover the ring: nothing holds what is above {expected}."
        )


def _check_replicas(row: RangeReplicas) -> None:
    for name, nodes in (("reads", row.reads), ("writes", row.writes), ("others", row.other)):
        if len(set(nodes)) != len(nodes):
            raise PlacementError(f"The {name} of {text_of(row)} name a node twice: {nodes}.")
    unwritten = [node for node in row.reads if node not in row.writes]
    if unwritten:
        raise PlacementError(f"{text_of(row)} is read from {unwritten}, which receive no writes.")
    unwritten = [node for node in row.other if node not in row.writes]
    if unwritten:
        raise PlacementError(f"{text_of(row)} asks {unwritten} for acks, which receive no writes.")
    for shards in (row.shards, row.other_shards):
        if (shards and len(shards) != len(row.writes)) or min(shards, default=0) < 0:
            raise PlacementError(f"{text_of(row)} has no shard for each of {row.writes}: {shards}.")


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Replicas of every range of the ring: rows sorted by start, without gaps. Made by ``of``.

    The table's columns are those of ``replica_columns``, its key is a row's start. Equal when the rows
    are, whatever the nodes' numbers.
    """

    table: Columns
    nodes: NodeNumbers

    @classmethod
    def of(cls, rows: Iterable[RangeReplicas], nodes: NodeNumbers = NO_NODES) -> Self:
        """A placement of rows in ring order; a node without a number gets the next one.

        Raises PlacementError unless they cover the ring exactly and each row's replicas are sound.
        """
        checked = tuple(rows)
        nodes, columns = _encoded(checked, nodes)
        if not _cover(columns.keys, np.array([row.end for row in checked], np.int64)):
            _check_cover(checked)
        unsound = first_unsound(columns)
        if unsound is not None:
            _check_replicas(checked[unsound])
        return cls(Columns.of(columns), nodes)

    @classmethod
    def at_rest(
        cls, starts: Keys, replicas: Numbers, nodes: NodeNumbers, shards: Numbers | None = None
    ) -> Self:
        """A placement whose rows begin at ``starts``; ``replicas`` serve reads and receive writes, on these
        ``shards``; without them all are 0.
        """
        never = np.zeros(len(starts), np.int64)
        if shards is not None:
            shards = np.where((shards > 0).any(axis=1, keepdims=True), shards, PAD)
        columns = Rows(starts, replica_columns(never, never, replicas, shards=shards))
        if not len(starts) or int(starts[0]) != MIN_TOKEN or first_unsound(columns) is not None:
            raise PlacementError(
                "Computed rows are no placement: they have a gap, or a node twice."
            )
        return cls(Columns.of(columns), nodes)

    @property
    def rows(self) -> tuple[RangeReplicas, ...]:
        """All rows, decoded anew each time."""
        rows = self.table.all()
        return tuple(rows_of(rows, ends_of(rows.keys), self.nodes))

    def __len__(self) -> int:
        return len(self.table)

    def row_for(self, token: int) -> RangeReplicas:
        """The row that holds the token, in O(log rows)."""
        if token == MIN_TOKEN:
            return self._row(*self.table.find(MAX_TOKEN))
        return self._row(*self.table.find(token - 1))

    def row_from(self, start: int) -> RangeReplicas | None:
        """The row that begins at ``start``, if there is one."""
        row = self._row(*self.table.find(start))
        return row if row.start == start else None

    def overlapping(self, range_: Range) -> tuple[RangeReplicas, ...]:
        """The rows that share a token with the range, in ring order."""
        row = self._row(*self.table.find(range_.start))
        found, end = [row], upper_bound(range_.end)
        while upper_bound(row.end) < end:
            row = self._row(*self.table.find(row.end))
            found.append(row)
        return tuple(found)

    def begins_at(self, token: int) -> bool:
        """True when a row begins there, or the ring ends."""
        at, place = self.table.find(token)
        return self.table.chunks[at].keys[place] == token

    def end_of(self, at: int, place: int) -> int:
        """Where the row at this chunk and place ends: the next one begins there."""
        keys, firsts = self.table.chunks[at].keys, self.table.firsts
        if place + 1 < len(keys):
            return keys[place + 1]
        return firsts[at + 1] if at + 1 < len(firsts) else MIN_TOKEN

    def renumbered(self, nodes: NodeNumbers) -> "Placement":
        """The same rows by other numbers; nodes that have none there get the next ones."""
        if nodes.agrees_with(self.nodes):
            return self
        nodes = nodes.with_nodes(self.nodes.names)
        rows = self.table.all()
        columns = on_nodes(rows.values, lambda numbers: self.nodes.translate(numbers, nodes))
        return Placement(Columns.of(Rows(rows.keys, columns)), nodes)

    def reads(self) -> Numbers:
        """Who serves the reads of each row, by number."""
        return reads_of(self.table.all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return self.table == other.renumbered(self.nodes).table

    __hash__ = None  # type: ignore[assignment]  # hashing all rows is never what is wanted

    def _row(self, at: int, place: int) -> RangeReplicas:
        chunk, names = self.table.chunks[at], self.nodes.names
        keys, values = chunk.keys, chunk.values
        version, before, count, _, _, others, shards, other_shards = chunk.same
        if version is None:
            version = values[VERSION][place]
        if before is None:
            before = values[VERSION_BEFORE][place]
        if count is None:
            count = values[READS_COUNT][place]
        written = tuple([names[number] for number in chunk.list_at(WRITES, place)])
        if count == len(written):
            read = written
        elif count == LISTED:
            read = tuple([names[number] for number in chunk.list_at(READS, place)])
        else:
            read = written[:count]
        other: tuple[str, ...] = ()
        if others is None:
            other = tuple([names[number] for number in chunk.list_at(OTHER, place)])
        end = keys[place + 1] if place + 1 < len(keys) else self.end_of(at, place)
        if shards is not None and other_shards is not None:
            return RangeReplicas(keys[place], end, read, written, version, before, other)
        on, onto = chunk.list_at(SHARDS, place), chunk.list_at(OTHER_SHARDS, place)
        return RangeReplicas(keys[place], end, read, written, version, before, other, on, onto)


def ends_of(starts: Keys) -> Keys:
    """Where the rows of a whole placement end: each at the next one's start, the last at the ring's end."""
    return np.append(starts[1:], MIN_TOKEN)


def rows_of(rows: Rows, ends: Keys, nodes: NodeNumbers) -> Iterator[RangeReplicas]:
    """The rows by name; ``ends`` may be more than they."""
    versions, versions_before, counts, writes, _, others, *shards = rows.values
    written = nodes.decode(writes)
    shared = np.array_equal(counts, lengths(writes))
    read = written if shared else nodes.decode(reads_of(rows))
    changes = versions.tolist(), versions_before.tolist()
    bounds = rows.keys.tolist(), ends.tolist()
    columns = *bounds, read, written, *changes, nodes.decode(others)
    return map(RangeReplicas, *columns, *map(_numbers, shards))


def _numbers(lists: Ints) -> list[tuple[int, ...]]:
    """The lists without their padding."""
    if not lists.shape[1]:
        return [()] * len(lists)
    return [tuple(n for n in numbers if n != PAD) for numbers in lists.tolist()]


def _encoded(rows: Sequence[RangeReplicas], nodes: NodeNumbers) -> tuple[NodeNumbers, Rows]:
    return encoded(
        [row.start for row in rows],
        [row.version for row in rows],
        [row.version_before for row in rows],
        [row.reads for row in rows],
        [row.writes for row in rows],
        [row.other for row in rows],
        nodes,
        [row.shards for row in rows],
        [row.other_shards for row in rows],
    )


EMPTY_RING: Final = Placement.of((RangeReplicas(MIN_TOKEN, MIN_TOKEN, (), ()),))
"""The placement of a ring in which no node has tokens: one range that nobody replicates."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Rows that leave a placement and rows that come in for them, as columns, both in ring order, none twice.

    ``nodes`` are the numbers by which ``rows`` name nodes.
    """

    removed: Ranges
    rows: Rows
    ends: Keys
    nodes: NodeNumbers

    @property
    def added(self) -> Ranges:
        return Ranges(self.rows.keys, self.ends)


def apply(
    placement: Placement, removed: Sequence[Range], added: Sequence[RangeReplicas]
) -> Placement:
    """``changed`` for rows that are not columns yet, in any order."""
    return changed(placement, change_of(removed, added, placement.nodes))


def change_of(
    removed: Iterable[Range], added: Iterable[RangeReplicas], nodes: NodeNumbers
) -> Change:
    """The change as columns, whatever its order; nodes without a number get the next ones."""
    outgoing, incoming = sorted(removed, key=_START), sorted(added, key=_START)
    nodes, rows = _encoded(incoming, nodes)
    ends = np.array([row.end for row in incoming], np.int64)
    return Change(ranges_by_column(outgoing), rows, ends, nodes)


def changed(placement: Placement, change: Change) -> Placement:
    """The placement without exactly the rows that a change removes and with those that it adds.

    Costs what the change is large, not what the ring is: where the rows removed were, the rows added
    must stand, so the rest of the ring is covered as before. Raises PlacementError when a range to
    remove is no row, or the result does not cover the ring, or a row's replicas are unsound.
    """
    outgoing = check_removed(placement, change.removed)
    spans = spans_of(change.added)
    check_same_span(outgoing, spans)
    _check_all_replicas(change)
    return Placement(_spliced(placement.table, spans, change), change.nodes)


def _check_all_replicas(change: Change) -> None:
    unsound = first_unsound(change.rows)
    if unsound is not None:
        (row,) = rows_of(change.rows.cut(unsound, unsound + 1), change.ends[unsound:], change.nodes)
        _check_replicas(row)


def _spliced(table: Columns, spans: Sequence[Span], change: Change) -> Columns:
    """The table with the rows that come in place of all that begins within the spans."""
    rows = change.rows
    if len(spans) <= len(table.chunks):
        for span in spans:
            part = rows.cut(span.first, span.stop)
            table = table.splice(span.start, upper_bound(span.end), part)
        return table
    # A change of so many places touches most chunks: from first to last it is one.
    low, high = spans[0].start, upper_bound(spans[-1].end)
    old = table.between(low, high)
    return table.splice(low, high, merged(old.chosen(~_inside(old.keys, change.added)), rows))


def _inside(keys: Keys, ranges: Ranges) -> Which:
    """Which of these starts of rows, none before the first range, are within one of the ranges."""
    return keys <= ranges.lasts()[np.searchsorted(ranges.starts, keys, "right") - 1]


def check_removed(placement: Placement, removed: Ranges) -> list[Span]:
    """The ranges as spans, if each is a row. Raises PlacementError."""
    spans, table = spans_of(removed), placement.table
    if len(spans) <= len(table.chunks):
        found = [table.keys_between(span.start, upper_bound(span.end)) for span in spans]
        there = found[0] if len(found) == 1 else np.concatenate((*found, removed.starts[:0]))
    else:
        there = table.keys_between(spans[0].start, upper_bound(spans[-1].end))
        there = there[_inside(there, removed)]
    end_rows = all(placement.begins_at(span.end) for span in spans)
    if not end_rows or there.tobytes() != removed.starts.tobytes():
        raise PlacementError(_which_is_no_row(placement, removed))
    return spans


def _which_is_no_row(placement: Placement, ranges: Ranges) -> str:
    """Says which one ``check_removed`` has come across."""
    for start, end in zip(ranges.starts.tolist(), ranges.ends.tolist(), strict=True):
        row = placement.row_from(start)
        if row is None or row.end != end:
            return f"Range {text_of(Range(start, end))} cannot be removed: it is no row."
    raise AssertionError("all ranges are rows")
