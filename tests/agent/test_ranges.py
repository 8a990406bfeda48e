"""Ranges that a node gains and loses, as reported to its store."""

from __future__ import annotations

from stele.agent.ranges import RangesChanged, changes, watch_ranges
from stele.domain.image import Image
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, contains
from tests.domain.history import join, three_nodes
from tests.node.world import World

TOKENS = [MIN_TOKEN + 1, *range(MIN_TOKEN + 1, MAX_TOKEN, MAX_TOKEN // 200), MAX_TOKEN]


class Told:
    """The ranges of a node according to the calls that it received."""

    def __init__(self) -> None:
        self.writes: dict[str, set[int]] = {}
        self.reads: dict[str, set[int]] = {}

    def __call__(self, change: RangesChanged) -> None:
        for held, more, less in (
            (self.writes, change.gained, change.lost),
            (self.reads, change.serves, change.retired),
        ):
            has = held.setdefault(change.data_id, set())
            came, went = within(more), within(less)
            assert not came & has and went <= has, "each is told once"
            held[change.data_id] = (has | came) - went


def within(ranges: tuple[Range, ...]) -> set[int]:
    return {token for token in TOKENS for each in ranges if contains(each, token)}


def held_by(image: Image, node_id: str) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    reads, writes = dict[str, set[int]](), dict[str, set[int]]()
    for data in image.schema.all_data():
        placement = image.ring.placements[data.placement]
        rows = {token: placement.row_for(token) for token in TOKENS}
        reads[data.data_id] = {t for t, row in rows.items() if node_id in row.reads}
        writes[data.data_id] = {t for t, row in rows.items() if node_id in row.writes}
    return reads, writes


def nonempty(held: dict[str, set[int]]) -> dict[str, set[int]]:
    return {data_id: tokens for data_id, tokens in held.items() if tokens}


def test_range_changes_add_up_to_the_ranges_at_each_epoch() -> None:
    history, world = three_nodes()
    for index in (4, 5):
        assert history.apply(join(index, f"r{index - 3}")) is None
        world.run()
    for node_id in ("n1", "n4"):
        told, before = Told(), None
        for image in history.images:
            for change in changes(node_id, before, image):
                told(change)
            reads, writes = held_by(image, node_id)
            assert nonempty(told.reads) == nonempty(reads)
            assert nonempty(told.writes) == nonempty(writes)
            before = image
        assert nonempty(told.writes)


async def test_watch_begins_with_present_ranges_and_continues() -> None:
    world, told = World(), list[RangesChanged]()
    follower = await world.follower()
    watch_ranges("n1", follower, told.append)
    (first,) = told
    assert first.gained == first.serves == (Range(MIN_TOKEN, MIN_TOKEN),)
    assert (first.name, first.data_id) == ("library", world.data_id)
    world.start_join()
    while world.image.topology.transitions:
        world.advance()
    await follower.wait_for_epoch(world.image.epoch)
    retired, lost = told[1:]
    assert retired.retired and not retired.lost and not retired.gained
    assert lost.lost == retired.retired and lost.epoch > retired.epoch
