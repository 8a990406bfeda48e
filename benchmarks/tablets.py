"""What a large tablet map costs: `python -m benchmarks.tablets`. No broker; 2^20 tablets in one table.

Each figure is processor time, of the best of several runs where one run is short.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator
from itertools import chain

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ring import Figure, best
from stele.domain.balancer.columns import tablets_of
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    Envelope,
    ResizeTable,
    command_name,
)
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.model.topology import Advance, Move
from stele.domain.names import TABLET_MAP, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.columns import Rows
from stele.domain.ring.placement import Placement, apply
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range
from stele.domain.ring.transition import TransitionPlan, TransitionRow
from stele.domain.snapshot import facts_to_image, image_to_facts
from stele.domain.tablets.maps import range_of
from stele.log.chain import STATE_BYTES
from stele.log.codec import decode_epoch, encode_epoch
from tests.coordinator.world import empty_cluster

TABLE = "bench.table"
TABLETS = 1 << 20
NODES = 30
STEPS = 300
LOOKUPS = 100_000


def main() -> None:
    table = Table("what", "measured", "goal", title=f"{TABLETS:,} tablets of three replicas")
    for figure in chain(of_all(), of_resize("split", TABLETS // 2), of_resize("merge", TABLETS)):
        goal = f"{figure.goal:g} {figure.unit}" if figure.goal else ""
        table.add_row(figure.what, f"{figure.value:,.2f} {figure.unit}", goal)
    Console().print(table)


def of_all() -> Iterator[Figure]:
    image = yield from taken("create", cluster(TABLETS), CreateTable(TABLE), 2)
    data = image.schema.serving(TABLE)
    assert data is not None
    placement = image.ring.placements[data.placement]
    yield Figure("memory", placement.table.size_bytes() / 1e6, "MB", 30)
    yield from of_snapshot(image)
    yield from of_map(placement)
    yield Figure("an image's tablets as columns", best(lambda: tablets_of(image)), "s")
    yield Figure("a look of the balancer, at rest", best(lambda: proposal(image)), "s", 2)


def of_snapshot(image: Image) -> Iterator[Figure]:
    """From the image to the bytes of a record, by way of facts, and back."""
    facts = tuple(image_to_facts(image))
    written = best(lambda: image_to_facts(image), 3)
    yield Figure("snapshot: image to facts", written, "s")
    epoch = epoch_of(facts)
    encoded = best(lambda: encode_epoch(epoch), 3)
    yield Figure("snapshot: facts to bytes", encoded, "s")
    yield Figure("snapshot: written", written + encoded, "s", 1)
    value = encode_epoch(epoch)
    decoded = best(lambda: decode_epoch(value), 3)
    yield Figure("snapshot: bytes to facts", decoded, "s")
    facts = decode_epoch(value).facts
    back = best(lambda: facts_to_image(facts, image.epoch, image.state_id), 3)
    yield Figure("snapshot: facts to image", back, "s")
    yield Figure("snapshot: read", decoded + back, "s", 0.2)
    yield Figure("snapshot: bytes", len(value) / 1e6, "MB")


def epoch_of(facts: tuple[AnyFact, ...]) -> Epoch:
    here = bytes(STATE_BYTES)
    return Epoch(epoch=1, prev_state_id=here, state_id=here, request_id="", command="", facts=facts)


def of_resize(what: str, count: int) -> Iterator[Figure]:
    """The epoch in which a table of so many tablets gets all or half of ``TABLETS``."""
    wanted = TABLETS if count < TABLETS else TABLETS // 2
    image = after(cluster(count), CreateTable(TABLE))
    image = siblings_together(image)
    image = after(image, ResizeTable(TABLE, wanted), what)
    term = image.topology.coordinator.term
    image = after(image, Advance(term=term, version=image.topology.version, open=((what,),)))
    move = Move(what, TransitionState.TABLET_RESIZE_FINALIZATION)
    finish = Advance(term=term, version=image.topology.version, moves=(move,), fence=True)
    yield from taken(what, image, finish)


def siblings_together(image: Image) -> Image:
    """Both tablets of each pair are on the same nodes, as the balancer brings them there before a merge."""
    (name,) = (name for name in image.ring.placements if name.startswith(TABLET_MAP))
    placement = image.ring.placements[name]
    rows = placement.table.all()
    pairs = Rows(rows.keys, tuple(np.repeat(column[::2], 2, axis=0) for column in rows.values))
    return apply_facts(image, image.ring.replacement(name, pairs))


def taken(
    what: str, before: Image, command: AnyCommand, goal: float = 0
) -> Generator[Figure, None, Image]:
    """How long a command takes to become facts, and those an image, which it returns, and a record."""
    began = time.process_time()
    facts = decided(before, command)
    yield Figure(f"{what}: decide", time.process_time() - began, "s", goal)
    began = time.process_time()
    image = apply_facts(before, facts)
    yield Figure(f"{what}: fold", time.process_time() - began, "s", goal)
    epoch = epoch_of(facts)
    yield Figure(f"{what}: facts to bytes", best(lambda: encode_epoch(epoch), 1), "s")
    return image


def after(before: Image, command: AnyCommand, request_id: str = "") -> Image:
    return apply_facts(before, decided(before, command, request_id))


def decided(before: Image, command: AnyCommand, request_id: str = "") -> tuple[AnyFact, ...]:
    envelope = Envelope(request_id=request_id or command_name(command), command=command)
    facts = decide(before, envelope, 0)
    assert isinstance(facts, tuple), facts
    return facts


def cluster(tablets: int) -> Image:
    """Nodes in three racks, and a keyspace whose tables get so many tablets."""
    world = empty_cluster()
    for number in range(NODES):
        world.add(f"{'abc'[number % 3]}{number}")
    world.run()
    keyspace = CreateKeyspace("bench", {"dc1": 3}, tablets=True, initial_tablets=tablets)
    assert world.apply(keyspace) is None
    return world.image


def of_map(placement: Placement) -> Iterator[Figure]:
    """Finding a tablet's replicas, and one step of a migration."""
    chance = random.Random(7)
    tokens = [chance.randint(MIN_TOKEN + 1, MAX_TOKEN) for _ in range(LOOKUPS)]

    def look_up() -> None:
        for token in tokens:
            placement.row_for(token)

    yield Figure("token to replicas", 1e6 * best(look_up) / LOOKUPS, "us", 2)
    ranges = [range_of(TABLETS, chance.randrange(TABLETS)) for _ in range(STEPS)]

    def step() -> None:
        changed = placement
        for range_ in ranges:
            changed = _moved(changed, range_)

    yield Figure("one step of a migration", 1e3 * best(step) / STEPS, "ms", 0.2)


def _moved(placement: Placement, range_: Range) -> Placement:
    row = placement.row_for(range_.end)
    new = tuple(node for node in placement.nodes.names if node not in row.reads)[:1]
    plan = TransitionPlan((TransitionRow(row.start, row.end, row.reads, (*new, *row.reads[1:])),))
    change = transition.write_both_read_old(placement, plan, 5)
    return apply(placement, change.removed, change.added)


if __name__ == "__main__":
    main()
