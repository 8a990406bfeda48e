"""The columns of a placement, and the checks that look at a whole column at once.

At rest the reads of a row are its writes, and while new replicas only receive writes they are the first
of them; so the reads are a count. Where they are not, they are listed in a column of their own.
"""

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Final

import numpy as np

from stele.domain.ring.columns import Ints, Keys, Rows, widened
from stele.domain.ring.numbers import PAD, NodeNumbers, Numbers, lengths

VERSION, VERSION_BEFORE, READS_COUNT, WRITES, READS, OTHER = range(6)
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
) -> tuple[Ints, ...]:
    """A placement's columns: both versions, reads_count, writes, reads where the count is LISTED, and others.

    Without ``reads`` and ``counts`` the reads are the writes; without ``others`` nobody is.
    """
    if others is None:
        others = np.empty((len(versions), 0), np.int32)
    if reads is None:
        reads = np.empty((len(versions), 0), np.int32)
    if counts is None:
        counts = lengths(writes)
    return versions, versions_before, counts, writes, reads, others


def encoded(
    starts: Sequence[int],
    versions: Sequence[int],
    versions_before: Sequence[int],
    reads: Sequence[tuple[str, ...]],
    writes: Sequence[tuple[str, ...]],
    others: Sequence[tuple[str, ...]],
    nodes: NodeNumbers,
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
    columns = replica_columns(*changes, written, read, np.array(counts, np.int32), other)
    return nodes, Rows(np.array(starts, np.int64), columns)


def _by_number(lists: Sequence[tuple[str, ...]], nodes: NodeNumbers) -> Numbers | None:
    return nodes.encode(lists) if lists else None


def _reads_count(reads: tuple[str, ...], writes: tuple[str, ...]) -> int:
    return len(reads) if reads == writes[: len(reads)] else LISTED


def reads_of(rows: Rows) -> Numbers:
    _, _, counts, writes, listed, _ = rows.values
    inside = np.arange(writes.shape[1]) < counts[:, None]
    if inside.all():
        return writes.astype(np.int32, copy=False)
    width = max(writes.shape[1], listed.shape[1])
    reads = widened(np.where(inside, writes, PAD).astype(np.int32), width)
    alone = counts == LISTED
    reads[alone] = widened(listed[alone], width)
    return reads


def first_unsound(rows: Rows) -> int | None:
    """The first row that names a node twice, or one that receives no writes among its reads or others."""
    _, _, _, writes, listed, others = rows.values
    wrong = [*_repeats(writes)]
    for lists in (listed, others):
        if lists.shape[1]:
            which = np.flatnonzero(lists[:, 0] != PAD)
            wrong += which[
                [*_repeats(lists[which]), *_lacking(lists[which], writes[which])]
            ].tolist()
    return min(wrong, default=None)


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
