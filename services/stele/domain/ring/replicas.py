"""The columns of a placement, and the checks that look at a whole column at once.

At rest the reads of a row are its writes, and while new replicas only receive writes they are the first
of them; so the reads are a count. Where they are not, they are listed in a column of their own.
"""

from collections.abc import Callable, Sequence
from itertools import chain, combinations
from typing import Final

import numpy as np

from stele.domain.column import Ints
from stele.domain.ring.columns import Keys, Rows, widened
from stele.domain.ring.numbers import PAD, NodeNumbers, Numbers, lengths, padded

VERSION, VERSION_BEFORE, READS_COUNT, WRITES, READS, OTHER, SHARDS, OTHER_SHARDS = range(8)
"""A placement's columns, in their order."""

LISTED: Final = -1
"""In column ``reads_count``: the reads are not the first of the writes, so they are listed alone."""


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
    """A placement's columns: both versions, reads_count, writes, reads where the count is LISTED, others, and
    the shards of writes, and the other ones, where they are not empty.

    Without ``reads`` and ``counts`` the reads are the writes; without ``others`` nobody is.
    """
    none = np.empty((len(versions), 0), np.int32)
    if counts is None:
        counts = lengths(writes)
    lists = (none if column is None else column for column in (reads, others, shards, other_shards))
    return versions, versions_before, counts, writes, *lists


def on_nodes(columns: Sequence[Ints], change: Callable[[Ints], Ints]) -> tuple[Ints, ...]:
    """A placement's columns with those that hold numbers of nodes changed."""
    return tuple(
        change(column) if WRITES <= at <= OTHER else column for at, column in enumerate(columns)
    )


def encoded(
    starts: Sequence[int],
    versions: Sequence[int],
    versions_before: Sequence[int],
    reads: Sequence[tuple[str, ...]],
    writes: Sequence[tuple[str, ...]],
    others: Sequence[tuple[str, ...]],
    nodes: NodeNumbers,
    shards: Sequence[tuple[int, ...]] = (),
    other_shards: Sequence[tuple[int, ...]] = (),
) -> tuple[NodeNumbers, Rows]:
    """The rows as columns, and the numbers with those of nodes that had none."""
    pairs = zip(reads, writes, strict=True)
    counts = [len(w) if r is w else _reads_count(r, w) for r, w in pairs]
    listed: Sequence[tuple[str, ...]] = ()
    if LISTED in counts:
        listed = [names if n == LISTED else () for names, n in zip(reads, counts, strict=True)]
    asked: Sequence[tuple[str, ...]] = others if any(others) else ()
    try:
        lists = nodes.encode(writes), _by_number(listed, nodes), _by_number(asked, nodes)
    except KeyError:
        nodes = nodes.with_nodes(chain.from_iterable(chain(writes, listed, asked)))
        lists = nodes.encode(writes), _by_number(listed, nodes), _by_number(asked, nodes)
    changes = np.array(versions, np.int64), np.array(versions_before, np.int64)
    written, read, other = lists
    columns = replica_columns(
        *changes,
        written,
        read,
        np.array(counts, np.int32),
        other,
        _listed(shards),
        _listed(other_shards),
    )
    return nodes, Rows(np.array(starts, np.int64), columns)


def _by_number(lists: Sequence[tuple[str, ...]], nodes: NodeNumbers) -> Numbers | None:
    return nodes.encode(lists) if lists else None


def _listed(lists: Sequence[tuple[int, ...]]) -> Numbers | None:
    if not any(lists):
        return None
    counts = list(map(len, lists))
    return padded(np.fromiter(chain.from_iterable(lists), np.int32), counts, max(counts))


def _reads_count(reads: tuple[str, ...], writes: tuple[str, ...]) -> int:
    return len(reads) if reads == writes[: len(reads)] else LISTED


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
    """The first row that names a node twice, or one that receives no writes among its reads or others, or that
    has not a shard for each of its writes.
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
    """The shard of each of the writes, padded as these are."""
    writes, shards = rows.values[WRITES], rows.values[SHARDS]
    there = writes != PAD
    if not shards.shape[1]:
        return np.where(there, 0, PAD).astype(np.int32)
    known = widened(shards.astype(np.int32), writes.shape[1])
    return np.where(there & (known == PAD), 0, known)


def read_shards(rows: Rows, reads: Numbers) -> Numbers:
    """The shard of each of the reads, as ``reads_of`` has them."""
    if not rows.values[SHARDS].shape[1]:
        return np.where(reads == PAD, PAD, 0).astype(np.int32)
    shards, writes = shards_of(rows), rows.values[WRITES]
    found = np.full_like(reads, PAD)
    for place in range(reads.shape[1]):
        which = (writes == reads[:, place, None]) & (writes != PAD)
        found[:, place] = np.where(which, shards, PAD).max(axis=1, initial=PAD)
    return found


def _misplaced(shards: Ints, writes: Ints) -> list[int]:
    """Rows that have some shards, but not one for each of the writes, or that are no numbers of any."""
    counts = lengths(shards)
    wrong = (counts > 0) & (counts != lengths(writes)) | (shards < PAD).any(axis=1)
    return np.flatnonzero(wrong).tolist()


def _lacking(lists: Ints, writes: Ints) -> list[int]:
    """Which lists name a node that the writes beside them do not."""
    known = (lists[:, :, None] == writes[:, None, :]).any(axis=2) | (lists == PAD)
    return np.flatnonzero(~known.all(axis=1)).tolist()


def _repeats(lists: Ints) -> list[int]:
    """Which lists name a node twice."""
    columns = lists.T
    pairs = list(combinations(columns, 2))
    same = [one == other for one, other in pairs]
    if not any(map(np.count_nonzero, same)):
        return []
    named = [equal & (one != PAD) for equal, (one, _) in zip(same, pairs, strict=True)]
    return np.flatnonzero(np.logical_or.reduce(named)).tolist()
