"""Costs of a large ring: `python -m benchmarks.ring`. One thread, no broker; 1,000 nodes of 256 tokens.

Each figure is the processor time of the best of several runs: other work on the machine only adds to it.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec
from immutables import Map
from rich.console import Console
from rich.table import Table

from stele.domain.model.ring import (
    PlacementChanged,
    RingFact,
    RingImage,
    packed,
    pieces_of,
    placement_changed,
)
from stele.domain.ring import transition
from stele.domain.ring.allocation import allocate_tokens
from stele.domain.ring.columns import Columns
from stele.domain.ring.placement import (
    EMPTY_RING,
    Placement,
    PlacementChange,
    apply,
    ends_of,
    ranges_by_column,
)
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, RangeReplicas, range_of
from stele.domain.ring.strategy import NodeLocation, placement_of
from stele.domain.ring.transition import (
    PlacementDelta,
    equals_at_rest,
    locks_of,
    prepare,
)
from tests.domain.ring.rings import Prepared, network_topology, prepare_rings

NODES = 1_000
TOKENS = 256
RUNS = 5
EPOCHS = 10_000
PIECE_ROWS = 50_000
FACTS = 2_000
_WHOLE = ranges_by_column((Range(MIN_TOKEN, MIN_TOKEN),))

Tokens = dict[int, str]
Locations = dict[str, NodeLocation]


class Figure(msgspec.Struct, frozen=True):
    """``goal`` is in the same unit, for this machine's one core; 0: there is none."""

    what: str
    value: float
    unit: str
    goal: float = 0


def main() -> None:
    table = Table("what", "measured", "goal", title=f"{NODES} nodes of {TOKENS} tokens")
    for figure in chain(strategies(), rows(), changes(), operations()):
        goal = f"{figure.goal:g} {figure.unit}" if figure.goal else ""
        table.add_row(figure.what, f"{figure.value:,.1f} {figure.unit}", goal)
    Console().print(table)


def strategies() -> Iterator[Figure]:
    cases = ((1, 1, 3), (1, 2, 3), (1, 3, 3), (1, 20, 3), (2, 3, 3), (3, 3, 3))
    for dcs, racks, rf in cases:
        tokens, locations = ring(dcs, racks)
        replication = {f"dc{dc}": rf for dc in range(dcs)}
        seconds = best(lambda t=tokens, at=locations, r=replication: placement_of(t, at, r))  # type: ignore[misc]
        yield Figure(
            f"placement_of: {dcs} dc, {racks} racks, rf {rf} each", 1e3 * seconds, "ms", 300
        )
    tokens, locations = ring(1, 3)
    seconds = best(lambda: network_topology(tokens, locations, {"dc0": 3}))
    yield Figure("network_topology, as Python rows", 1e3 * seconds, "ms", 300)


def rows() -> Iterator[Figure]:
    """Loading, looking up, memory, hash."""
    placement = at_rest()
    found = placement.rows
    yield Figure("load and check all rows (of)", 1e3 * best(lambda: Placement.of(found)), "ms", 300)
    yield Figure("decode all rows", 1e3 * best(lambda: placement.rows), "ms")
    yield Figure("memory of a row", placement.table.size_bytes() / len(placement), "bytes", 24)
    rng = random.Random(1)
    tokens = [rng.randrange(MIN_TOKEN, MAX_TOKEN) for _ in range(EPOCHS)]
    seconds = best(lambda: each(placement.row_for, tokens))
    yield Figure("row_for", 1e6 * seconds / EPOCHS, "us", 3)
    seconds = best(lambda: each(placement.table.find, tokens))
    yield Figure("find", 1e6 * seconds / EPOCHS, "us", 2)
    seconds = best(lambda: Columns.of(placement.table.all()).hash_sum(), runs=2)
    yield Figure("hash all rows", 1e3 * seconds, "ms")
    placement.table.hash_sum()
    changed = apply(placement, *one_change(found[0], 1))
    began_s = time.process_time()
    changed.table.hash_sum()
    yield Figure("hash after one changed row", 1e3 * (time.process_time() - began_s), "ms")


def changes() -> Iterator[Figure]:
    placement = at_rest()
    rng = random.Random(2)
    deltas = [one_change(row, i) for i, row in enumerate(rng.sample(placement.rows, EPOCHS))]

    def replay() -> Placement:
        live = placement
        for removed, added in deltas:
            live = apply(live, removed, added)
        return live

    seconds = best(replay, runs=3)
    yield Figure(f"replay of {EPOCHS} epochs of one changed row", seconds, "s", 2)
    yield Figure("apply one changed row", 1e6 * seconds / EPOCHS, "us", 50)
    row = placement.row_for(0)
    halves = [
        msgspec.structs.replace(row, end=row.start + 1),
        msgspec.structs.replace(row, start=row.start + 1),
    ]
    seconds = best(lambda: [apply(placement, [range_of(row)], halves) for _ in range(100)])
    yield Figure("apply a split of one row", 1e6 * seconds / 100, "us")
    rows = placement.table.all()
    whole = PlacementChange(_WHOLE, rows, ends_of(rows.keys), placement.nodes)
    seconds = best(lambda: list(pieces_of(EMPTY_RING, whole, PIECE_ROWS)), runs=2)
    yield Figure(f"part a whole placement, {PIECE_ROWS} rows each", 1e3 * seconds, "ms")
    some, ends = rows.cut(0, PIECE_ROWS), whole.ends[:PIECE_ROWS]
    seconds = best(lambda: packed(some, ends), runs=2)
    yield Figure(f"pack {PIECE_ROWS} rows", 1e3 * seconds, "ms")
    image = RingImage(nodes=placement.nodes)
    seconds = best(lambda: list(image.creation("bench", placement)), runs=2)
    yield Figure("a whole placement as facts", 1e3 * seconds, "ms")
    yield from one_by_one(RingImage(Map(bench=placement), placement.nodes))


def one_by_one(image: RingImage) -> Iterator[Figure]:
    """Epochs that change one row each, as a steady stream of them does."""
    rng = random.Random(3)
    rows = rng.sample(image.placements["bench"].rows, FACTS)
    deltas = [one_change(row, i) for i, row in enumerate(rows)]
    changes = [PlacementDelta(tuple(removed), tuple(added)) for removed, added in deltas]

    def facts() -> list[RingFact]:
        return [fact for change in changes for fact in image.change("bench", change)]

    yield Figure("facts of one changed row", 1e6 * best(facts) / FACTS, "us")
    written = [fact for fact in facts() if isinstance(fact, PlacementChanged)]

    def fold() -> None:
        live = image
        for fact in written:
            live = placement_changed(live, fact)

    yield Figure("fold a fact of one changed row", 1e6 * best(fold) / FACTS, "us")


def operations() -> Iterator[Figure]:
    """A join of one node: its plan, its locks, and what each step changes."""
    tokens, locations = ring(1, 3)
    rf, place = {"dc0": 3}, NodeLocation("dc0", "r1")
    joining = allocate_tokens(tokens, locations, "new", place, TOKENS, b"seed")
    new_tokens = {**tokens, **dict.fromkeys(joining, "new")}
    new_locations = {**locations, "new": place}
    found = prepare_rings(tokens, new_tokens, locations, new_locations, rf)
    seconds = best(lambda: prepare_rings(tokens, new_tokens, locations, new_locations, rf), runs=3)
    yield Figure("prepare_rings of a join", 1e3 * seconds, "ms", 1_000)
    seconds = best(lambda: prepare(found.before, found.after, tokens.keys(), new_tokens.keys()))
    yield Figure("prepare of a join alone", 1e3 * seconds, "ms")
    yield Figure("locks_of", 1e3 * best(lambda: locks_of(found.plan, found.before)), "ms")
    live = found.before
    seconds = best(lambda: equals_at_rest(live, found.before))
    yield Figure("equals_at_rest of the whole ring", 1e3 * seconds, "ms")
    yield Figure("rows of the plan", len(found.plan.rows), "rows")
    steps = (
        transition.split_delta,
        transition.write_both_read_old,
        transition.write_both_read_new,
        transition.finish,
    )
    for version, step in enumerate(steps, start=1):
        delta = step(live, found.plan, version)
        yield Figure(f"delta of {step.__name__}", 1e3 * _step(step, live, found), "ms", 20)
        seconds = best(lambda at=live, d=delta: apply(at, d.removed, d.added))  # type: ignore[misc]
        yield Figure(f"apply it, {len(delta.added)} rows", 1e3 * seconds, "ms")
        live = apply(live, delta.removed, delta.added)


def _step(step: Callable[..., PlacementDelta], live: Placement, found: Prepared) -> float:
    return best(lambda: step(live, found.plan, 9))


def one_change(row: RangeReplicas, version: int) -> tuple[list[Range], list[RangeReplicas]]:
    """The row with its replicas turned, as a fact of one epoch has it."""
    turned = (*row.writes[1:], row.writes[0])
    return [range_of(row)], [RangeReplicas(row.start, row.end, turned, turned, version)]


def at_rest() -> Placement:
    tokens, locations = ring(1, 3)
    return placement_of(tokens, locations, {"dc0": 3})


def ring(dcs: int, racks: int) -> tuple[Tokens, Locations]:
    """Random tokens, the same each time; nodes go round the dcs, and in each round its racks."""
    rng = random.Random(7)
    names = [f"node-{number:04}" for number in range(NODES)]
    tokens = {
        rng.randrange(MIN_TOKEN + 1, MAX_TOKEN): name for name in names for _ in range(TOKENS)
    }
    locations = {
        name: NodeLocation(f"dc{number % dcs}", f"r{number // dcs % racks}")
        for number, name in enumerate(names)
    }
    return tokens, locations


def each(run: Callable[[int], object], tokens: list[int]) -> None:
    for token in tokens:
        run(token)


def best(run: Callable[[], object], runs: int = RUNS) -> float:
    """Processor seconds of the fastest run. Like the services, it freezes what is there before."""
    seconds = list[float]()
    gc.collect()
    gc.freeze()
    for _ in range(runs):
        began_s = time.process_time()
        run()
        seconds.append(time.process_time() - began_s)
    return min(seconds)


if __name__ == "__main__":
    main()
