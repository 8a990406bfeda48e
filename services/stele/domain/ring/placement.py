"""The columns of a placement, and the checks that examine a whole column at once.

At rest the reads of a row are its writes. While new replicas only receive writes, the reads are the
first of the writes. The reads are therefore a count. In all other rows they are listed in a
separate column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, combinations
from operator import attrgetter
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints
from stele.domain.ring.columns import (
    NO_NODES,
    PAD,
    Columns,
    Keys,
    NodeNumbers,
    Numbers,
    Rows,
    lengths,
    merged,
    padded,
    widened,
)
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, RangeReplicas, upper_bound

VERSION, VERSION_BEFORE, READS_COUNT, WRITES, READS, OTHER, SHARDS, OTHER_SHARDS = range(8)
"""A placement's columns, in their order."""

LISTED: Final = -1
"""Value of column ``reads_count`` for rows whose reads are not the first of the writes and are
listed.
"""


def replica_columns(
    versions: Keys,
    versions_before: Keys,
    writes: Numbers,
    reads: Numbers | None = None,
    counts: Ints | None = None,
    others: Numbers | None = None,
    shards: Numbers | None = None,
    other_shards: Numbers | None = None,
) -> tuple[Ints, ...]:
    """Return a placement's columns, in the order of the constants above.

    Without ``reads`` and ``counts`` the reads are the writes. Without ``others`` no range moves.
    Without shards all replicas are on shard 0.
    """
    none = np.empty((len(versions), 0), np.int32)
    if counts is None:
        counts = lengths(writes)
    lists = (none if column is None else column for column in (reads, others, shards, other_shards))
    return versions, versions_before, counts, writes, *lists


def on_nodes(columns: Sequence[Ints], change: Callable[[Ints], Ints]) -> tuple[Ints, ...]:
    """Return a placement's columns, with ``change`` applied to those that hold numbers of nodes."""
    return tuple(
        change(column) if WRITES <= at <= OTHER else column for at, column in enumerate(columns)
    )


def _encoded(rows: Sequence[RangeReplicas], nodes: NodeNumbers) -> tuple[NodeNumbers, Rows]:
    """Return the rows as columns, and the numbers with those of nodes that had none."""
    reads, writes = [row.reads for row in rows], [row.writes for row in rows]
    pairs = zip(reads, writes, strict=True)
    counts = [len(r) if r is w or r == w[: len(r)] else LISTED for r, w in pairs]
    listed, asked = list[tuple[str, ...]](), [row.other for row in rows]
    if LISTED in counts:
        listed = [names if n == LISTED else () for names, n in zip(reads, counts, strict=True)]
    if not any(asked):
        asked = []
    try:
        lists = nodes.encode(writes), _by_number(listed, nodes), _by_number(asked, nodes)
    # Most changes name known nodes only, so numbers are added only after a failed look-up.
    except KeyError:
        nodes = nodes.with_nodes(chain.from_iterable(chain(writes, listed, asked)))
        lists = nodes.encode(writes), _by_number(listed, nodes), _by_number(asked, nodes)
    written, read, other = lists
    columns = replica_columns(
        np.array([row.version for row in rows], np.int64),
        np.array([row.version_before for row in rows], np.int64),
        written,
        read,
        np.array(counts, np.int32),
        other,
        _listed([row.shards for row in rows]),
        _listed([row.other_shards for row in rows]),
    )
    return nodes, Rows(np.array([row.start for row in rows], np.int64), columns)


def _by_number(lists: Sequence[tuple[str, ...]], nodes: NodeNumbers) -> Numbers | None:
    return nodes.encode(lists) if lists else None


def _listed(lists: Sequence[tuple[int, ...]]) -> Numbers | None:
    if not any(lists):
        return None
    counts = list(map(len, lists))
    return padded(np.fromiter(chain.from_iterable(lists), np.int32), counts, max(counts))


def reads_of(rows: Rows) -> Numbers:
    _, _, counts, writes, listed, *_ = rows.values
    inside = np.arange(writes.shape[1]) < counts[:, None]
    if inside.all():
        return writes.astype(np.int32, copy=False)
    width = max(writes.shape[1], listed.shape[1])
    reads = widened(np.where(inside, writes, PAD).astype(np.int32), width)
    alone = counts == LISTED
    reads[alone] = widened(listed[alone], width)
    return reads


def first_unsound(rows: Rows) -> int | None:
    """Return the first unsound row, or None.

    An unsound row names a node twice, or has reads or others that receive no writes. Or its shards
    are not one for each of its writes.
    """
    _, _, _, writes, listed, others, *shards = rows.values
    wrong = [*_repeats(writes)]
    for lists in (listed, others):
        if lists.shape[1]:
            which = np.flatnonzero(lists[:, 0] != PAD)
            wrong += which[
                [*_repeats(lists[which]), *_lacking(lists[which], writes[which])]
            ].tolist()
    for places in shards:
        if places.shape[1]:
            wrong += _misplaced(places, writes)
    return min(wrong, default=None)


def shards_of(rows: Rows) -> Numbers:
    """Return the shard of each of the writes, padded as these are."""
    writes, shards = rows.values[WRITES], rows.values[SHARDS]
    there = writes != PAD
    if not shards.shape[1]:
        return np.where(there, 0, PAD).astype(np.int32)
    known = widened(shards.astype(np.int32), writes.shape[1])
    return np.where(there & (known == PAD), 0, known)


def read_shards(rows: Rows, reads: Numbers) -> Numbers:
    """Return the shard of each of the reads, in the form of ``reads_of``."""
    if not rows.values[SHARDS].shape[1]:
        return np.where(reads == PAD, PAD, 0).astype(np.int32)
    shards, writes = shards_of(rows), rows.values[WRITES]
    found = np.full_like(reads, PAD)
    for place in range(reads.shape[1]):
        which = (writes == reads[:, place, None]) & (writes != PAD)
        found[:, place] = np.where(which, shards, PAD).max(axis=1, initial=PAD)
    return found


def _misplaced(shards: Ints, writes: Ints) -> list[int]:
    """Return rows whose shards are not one for each of the writes, or are no valid numbers."""
    counts = lengths(shards)
    wrong = (counts > 0) & (counts != lengths(writes)) | (shards < PAD).any(axis=1)
    return np.flatnonzero(wrong).tolist()


def _lacking(lists: Ints, writes: Ints) -> list[int]:
    """Return the lists that name a node which the writes beside them do not."""
    known = (lists[:, :, None] == writes[:, None, :]).any(axis=2) | (lists == PAD)
    return np.flatnonzero(~known.all(axis=1)).tolist()


def _repeats(lists: Ints) -> list[int]:
    """Return the lists that name a node twice."""
    columns = lists.T
    pairs = list(combinations(columns, 2))
    same = [one == other for one, other in pairs]
    if not any(map(np.count_nonzero, same)):
        return []
    # Padding equals padding, which is no repeated node.
    named = [equal & (one != PAD) for equal, (one, _) in zip(same, pairs, strict=True)]
    return np.flatnonzero(np.logical_or.reduce(named)).tolist()


# Ranges by column, with neighbours joined: the removed and the added part of a change.


class PlacementError(ValueError):
    """Rows are no placement, or a change does not fit one.

    The text names the row and the reason.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges (start, end] by column."""

    starts: Keys
    ends: Keys

    def __len__(self) -> int:
        return len(self.starts)

    def cut(self, low: int, high: int) -> Ranges:
        return Ranges(self.starts[low:high], self.ends[low:high])

    def lasts(self) -> Keys:
        """Return the greatest start of a row within each range; MAX_TOKEN for the ring's last
        range.
        """
        return self.ends - 1  # MIN_TOKEN, the infinite end, wraps around to MAX_TOKEN


class ChangeSpan(msgspec.Struct, frozen=True):
    """Neighbouring ranges of a change as one.

    They have the places ``first`` up to ``stop`` among them.
    """

    start: int
    end: int
    first: int
    stop: int


def ranges_by_column(ranges: Sequence[Range]) -> Ranges:
    starts = np.array([range_.start for range_ in ranges], np.int64)
    return Ranges(starts, np.array([range_.end for range_ in ranges], np.int64))


def spans_of(ranges: Ranges) -> list[ChangeSpan]:
    """Return the ranges with neighbours joined.

    Raises PlacementError unless each comes once, in ring order.
    """
    starts, ends = ranges.starts, ranges.ends
    found = list[ChangeSpan]()
    first, reached = 0, MIN_TOKEN
    for stop in _breaks(starts, ends):
        span = ChangeSpan(starts.item(first), ends.item(stop - 1), first, stop)
        if span.start < reached:
            raise PlacementError(
                f"{text_of(span)} comes twice, is out of order or overlaps {reached}."
            )
        within = starts[first:stop]
        if starts.item(stop - 1) >= upper_bound(span.end) or (
            stop - first > 1 and np.count_nonzero(within[1:] <= within[:-1])
        ):
            raise PlacementError(f"{text_of(span)} has a range that holds no token.")
        found.append(span)
        first, reached = stop, upper_bound(span.end)
    return found


def _breaks(starts: Keys, ends: Keys) -> list[int]:
    """Return the places after the ranges that a gap or the end follows."""
    if len(starts) < 2:
        return [1] * len(starts)
    (breaks,) = (starts[1:] != ends[:-1]).nonzero()
    return [*(breaks + 1).tolist(), len(starts)]


def text_of(range_: Range | RangeReplicas | ChangeSpan) -> str:
    return f"({range_.start}, {range_.end}]"


# The placement: the replicas of every range of the ring, in chunked columns (docs/design.md, rule
# 17).
#
# A row ends where the next row starts, and names nodes by number. Cassandra's counterpart is
# ``tcm/ownership/DataPlacement``.


Which = npt.NDArray[np.bool_]
_START: Final = attrgetter("start")


def _cover(starts: Keys, ends: Keys) -> bool:
    """Return True when each row begins where the one before ended, from MIN_TOKEN to infinity."""
    return (
        len(starts) > 0
        and int(starts[0]) == int(ends[-1]) == MIN_TOKEN
        and np.array_equal(starts[1:], ends[:-1])
        and bool((starts[1:] > starts[:-1]).all())
    )


def cover_flaws(rows: Iterable[RangeReplicas]) -> Iterator[tuple[RangeReplicas | None, str]]:
    """Yield the gaps and overlaps of rows in any order, each with its row; None is the ring's end."""
    held = MIN_TOKEN
    before: RangeReplicas | None = None
    # The row that reaches furthest is remembered, because a short row may lie inside a long one.
    for row in sorted(rows, key=_START):
        if row.start >= upper_bound(row.end):
            yield row, "it is no range: its end is not above its start"
        if row.start < held and before is not None:
            yield row, f"it overlaps {text_of(before)}"
        elif row.start > held:
            yield row, f"no row has the tokens from {held} up to its start"
        if before is None or upper_bound(row.end) > held:
            held, before = upper_bound(row.end), row
    if held != upper_bound(MIN_TOKEN):
        yield None, f"no row has the tokens above {held}"


def replica_flaws(row: RangeReplicas) -> Iterator[str]:
    """Yield what is wrong with a row's replicas. ``first_unsound`` finds the row in columns."""
    for what, nodes in (("reads", row.reads), ("writes", row.writes), ("other", row.other)):
        twice = sorted({node for node in nodes if nodes.count(node) > 1})
        if twice:
            yield f"its {what} name {', '.join(twice)} twice"
    unwritten = [node for node in row.reads if node not in row.writes]
    if unwritten:
        yield f"it is read from {', '.join(unwritten)}, which receive no writes"
    unwritten = [node for node in row.other if node not in row.writes]
    if unwritten:
        yield f"it asks {', '.join(unwritten)} for acks, which receive no writes"
    for what, shards in (("shards", row.shards), ("other_shards", row.other_shards)):
        if (shards and len(shards) != len(row.writes)) or min(shards, default=0) < 0:
            yield f"its {what} are not one for each of its writes: {list(shards)}"


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Replicas of every range of the ring: rows sorted by start, without gaps. Made by ``of``.

    The table's columns are those of ``replica_columns``. Its key is a row's start. Placements are
    equal when their rows are, with any numbers of nodes.
    """

    table: Columns
    nodes: NodeNumbers

    @classmethod
    def of(cls, rows: Iterable[RangeReplicas], nodes: NodeNumbers = NO_NODES) -> Self:
        """Return a placement of rows in ring order. A node without a number gets the next one.

        Raises PlacementError unless the rows cover the ring exactly and each row's replicas are
        sound.
        """
        checked = tuple(rows)
        nodes, columns = _encoded(checked, nodes)
        if not _cover(columns.keys, np.array([row.end for row in checked], np.int64)):
            row, flaw = next(cover_flaws(checked), (None, "its rows are not in ring order"))
            raise PlacementError(f"{text_of(row) if row else 'The ring'}: {flaw}.")
        unsound = first_unsound(columns)
        if unsound is not None:
            raise _unsound(checked[unsound])
        return cls(Columns.of(columns), nodes)

    @classmethod
    def at_rest(
        cls, starts: Keys, replicas: Numbers, nodes: NodeNumbers, shards: Numbers | None = None
    ) -> Self:
        """Return a placement at rest, whose rows begin at ``starts``.

        ``replicas`` serve reads and receive writes, on ``shards``. Without ``shards`` all are on
        shard 0.
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
        """All rows, decoded at each call."""
        rows = self.table.all()
        return tuple(rows_of(rows, ends_of(rows.keys), self.nodes))

    def __len__(self) -> int:
        return len(self.table)

    def row_for(self, token: int) -> RangeReplicas:
        """Return the row that holds the token, in O(log rows)."""
        if token == MIN_TOKEN:
            return self._row(*self.table.find(MAX_TOKEN))
        return self._row(*self.table.find(token - 1))

    def row_from(self, start: int) -> RangeReplicas | None:
        """Return the row that begins at ``start``, or None."""
        row = self._row(*self.table.find(start))
        return row if row.start == start else None

    def overlapping(self, range_: Range) -> tuple[RangeReplicas, ...]:
        """Return the rows that share a token with the range, in ring order."""
        row = self._row(*self.table.find(range_.start))
        found, end = [row], upper_bound(range_.end)
        while upper_bound(row.end) < end:
            row = self._row(*self.table.find(row.end))
            found.append(row)
        return tuple(found)

    def begins_at(self, token: int) -> bool:
        """Return True when a row begins at the token, or the ring ends there."""
        at, place = self.table.find(token)
        return self.table.chunks[at].keys[place] == token

    def end_of(self, at: int, place: int) -> int:
        """Return the end of the row at this chunk and place, where the next row begins."""
        keys, firsts = self.table.chunks[at].keys, self.table.firsts
        if place + 1 < len(keys):
            return keys[place + 1]
        return firsts[at + 1] if at + 1 < len(firsts) else MIN_TOKEN

    def renumbered(self, nodes: NodeNumbers) -> Placement:
        """Return the same rows by the numbers ``nodes``.

        Nodes without a number there get the next ones.
        """
        # One is a prefix of the other, so the numbers in the rows mean the same nodes.
        if nodes.agrees_with(self.nodes):
            return self
        nodes = nodes.with_nodes(self.nodes.names)
        rows = self.table.all()
        columns = on_nodes(rows.values, lambda numbers: self.nodes.translate(numbers, nodes))
        return Placement(Columns.of(Rows(rows.keys, columns)), nodes)

    def reads(self) -> Numbers:
        """Return the nodes that serve the reads of each row, by number."""
        return reads_of(self.table.all())

    def read_on(self, nodes: Set[str]) -> Which:
        """Return which of the replicas in ``reads`` are on these nodes, in the same shape."""
        # The additional False is the entry for PAD, which is -1.
        here = np.array([*(name in nodes for name in self.nodes.names), False])
        found: Which = here[self.reads()]
        return found

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
    """Return the ends of all rows: each at the next one's start, the last at the ring's end."""
    return np.append(starts[1:], MIN_TOKEN)


def rows_of(rows: Rows, ends: Keys, nodes: NodeNumbers) -> Iterator[RangeReplicas]:
    """Yield the rows with node ids; ``ends`` may be longer than the rows."""
    versions, versions_before, counts, writes, _, others, *shards = rows.values
    written = nodes.decode(writes)
    shared = np.array_equal(counts, lengths(writes))
    read = written if shared else nodes.decode(reads_of(rows))
    changes = versions.tolist(), versions_before.tolist()
    bounds = rows.keys.tolist(), ends.tolist()
    columns = *bounds, read, written, *changes, nodes.decode(others)
    return map(RangeReplicas, *columns, *map(_numbers, shards))


def _numbers(lists: Ints) -> list[tuple[int, ...]]:
    """Return the lists without their padding."""
    if not lists.shape[1]:
        return [()] * len(lists)
    return [tuple(n for n in numbers if n != PAD) for numbers in lists.tolist()]


EMPTY_RING: Final = Placement.of((RangeReplicas(MIN_TOKEN, MIN_TOKEN, (), ()),))
"""The placement of a ring in which no node has tokens: one range without replicas."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementChange:
    """Rows that leave a placement and the rows that replace them, by column.

    Both are in ring order and have no row twice.

    ``nodes`` are the numbers that ``rows`` use for nodes.
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
    """Return the placement after a change given as rows, in any order. See ``changed``."""
    return changed(placement, change_of(removed, added, placement.nodes))


def change_of(
    removed: Iterable[Range], added: Iterable[RangeReplicas], nodes: NodeNumbers
) -> PlacementChange:
    """Return the change as columns, from any order. Nodes without a number get the next ones."""
    outgoing, incoming = sorted(removed, key=_START), sorted(added, key=_START)
    nodes, rows = _encoded(incoming, nodes)
    ends = np.array([row.end for row in incoming], np.int64)
    return PlacementChange(ranges_by_column(outgoing), rows, ends, nodes)


def changed(placement: Placement, change: PlacementChange) -> Placement:
    """Return the placement without exactly the removed rows of a change and with its added rows.

    The cost depends on the size of the change, not of the ring. Added rows must cover what the
    removed rows covered, so the rest of the ring is covered as before. Raises PlacementError in
    three cases: a range to remove is no row, the result does not cover the ring, or a row's
    replicas are unsound.
    """
    outgoing = check_removed(placement, change.removed)
    spans = spans_of(change.added)
    if [(each.start, each.end) for each in outgoing] != [(each.start, each.end) for each in spans]:
        gone, come = (", ".join(map(text_of, each)) or "nothing" for each in (outgoing, spans))
        raise PlacementError(
            f"What is added, {come}, has other tokens than what is removed, {gone}."
        )
    _check_all_replicas(change)
    return Placement(_spliced(placement.table, spans, change), change.nodes)


def _check_all_replicas(change: PlacementChange) -> None:
    unsound = first_unsound(change.rows)
    if unsound is not None:
        (row,) = rows_of(change.rows.cut(unsound, unsound + 1), change.ends[unsound:], change.nodes)
        raise _unsound(row)


def _unsound(row: RangeReplicas) -> PlacementError:
    return PlacementError(f"{text_of(row)}: {'; '.join(replica_flaws(row))}.")


def _spliced(table: Columns, spans: Sequence[ChangeSpan], change: PlacementChange) -> Columns:
    """Return the table with the added rows in place of all that begin within the spans."""
    rows = change.rows
    if len(spans) <= len(table.chunks):
        for span in spans:
            part = rows.cut(span.first, span.stop)
            table = table.splice(span.start, upper_bound(span.end), part)
        return table
    # A change in this many places touches most chunks. It is treated as one span from first to
    # last.
    low, high = spans[0].start, upper_bound(spans[-1].end)
    old = table.between(low, high)
    return table.splice(low, high, merged(old.chosen(~_inside(old.keys, change.added)), rows))


def _inside(keys: Keys, ranges: Ranges) -> Which:
    """Return which of these starts lie within one of the ranges.

    No start is before the first range.
    """
    return keys <= ranges.lasts()[np.searchsorted(ranges.starts, keys, "right") - 1]


def check_removed(placement: Placement, removed: Ranges) -> list[ChangeSpan]:
    """Return the ranges as spans, if each is a row. Raises PlacementError."""
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
    """Return the text for the range that ``check_removed`` has rejected."""
    for start, end in zip(ranges.starts.tolist(), ranges.ends.tolist(), strict=True):
        row = placement.row_from(start)
        if row is None or row.end != end:
            return f"Range {text_of(Range(start, end))} cannot be removed: it is no row."
    raise AssertionError("all ranges are rows")
