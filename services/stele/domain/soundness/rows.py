"""The rows of a placement as a person may have written them: gaps, overlaps and replicas, all that is wrong."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stele.domain.ring.ranges import RangeReplicas, range_of, upper_bound
from stele.domain.ring.spans import text_of
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.domain.soundness.flaw import Flaw

MOST_VERSION: Final = 1 << 62
"""Of the topology and of rows: versions go on above it, also those of a cluster that begins with the state."""
MOST_SHARD: Final = (1 << 31) - 1


def row_flaws(name: str, rows: Sequence[RangeReplicas]) -> Iterator[Flaw]:
    """Rows in any order. Without a flaw they are a placement (``ring.placement.Placement.of``)."""
    for row in rows:
        place = place_of(name, row)
        if row.start >= upper_bound(row.end):
            yield Flaw(place, "it is no range: its end is not above its start")
        yield from (Flaw(place, what) for what in (*_replicas(row), *_numbers(row)))
    yield from _cover(name, rows)


def place_of(name: str, row: RangeReplicas) -> str:
    return f"placement {name}, range {text_of(range_of(row))}"


def _cover(name: str, rows: Iterable[RangeReplicas]) -> Iterator[Flaw]:
    """Together the ranges have each token once."""
    held = MIN_TOKEN
    before: RangeReplicas | None = None
    for row in sorted(rows, key=lambda row: row.start):
        if row.start < held and before is not None:
            yield Flaw(place_of(name, row), f"it overlaps {text_of(range_of(before))}")
        elif row.start > held:
            yield Flaw(place_of(name, row), f"no row has the tokens from {held} up to its start")
        if before is None or upper_bound(row.end) > held:
            held, before = upper_bound(row.end), row
    if held != upper_bound(MIN_TOKEN):
        yield Flaw(f"placement {name}", f"no row has the tokens above {held}")


def _numbers(row: RangeReplicas) -> Iterator[str]:
    """What does not fit into the columns of a placement."""
    versions = (row.version, row.version_before)
    if min(row.start, row.end) < MIN_TOKEN or max(row.start, row.end) > MAX_TOKEN:
        yield f"tokens are from {MIN_TOKEN} to {MAX_TOKEN}"
    if not 0 <= min(versions) <= max(versions) <= MOST_VERSION:
        yield f"its versions are not from 0 to {MOST_VERSION}"
    if max((*row.shards, *row.other_shards), default=0) > MOST_SHARD:
        yield f"its shards are not all up to {MOST_SHARD}"


def _replicas(row: RangeReplicas) -> Iterator[str]:
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
