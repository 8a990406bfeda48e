"""A plan and its outcome, for each operation that moves data: bytes within a fifth, the same steps."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import pytest

from stele.coordinator.dry_run import with_sizes
from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    Join,
    KeyspaceRfChange,
    Leave,
    MoveNode,
    MoveTablets,
    Rebuild,
    Remove,
    Replace,
    ResizeTable,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.names import RequestStatus
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from stele.runtime.answers.plans import PlanVerdict
from tests.coordinator.operations import DOWN_S, is_over
from tests.coordinator.test_dry_run import planned
from tests.coordinator.test_preflight import ASK, RING, envelope, held, joining, outcome
from tests.coordinator.world import BALANCE_S, World, empty_cluster

COPY_BYTES: Final = 1_000_000_000
"""Bytes of one copy of a keyspace or table; they are spread evenly over the ring."""


class Operation(NamedTuple):
    """A command, and the node that is ``dead`` when it is sent."""

    command: Callable[[World], AnyCommand]
    dead: str = ""


def cluster(tables: bool = True) -> World:
    """Return two nodes in each of three racks, with a keyspace on the ring and a table of eight tablets."""
    world = empty_cluster()
    world.add("a1 a2 b1 b2 c1 c2")
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": 3})) is None
    if tables:
        world.create_table({"dc1": 3}, 8)
    world.run()
    return world


def _replace(world: World) -> AnyCommand:
    return Replace(
        node_id="a3", replaced_id="a2", cluster="demo", address="http://a3", dc="dc1", rack="a",
        host_id="host-a3",
    )  # fmt: skip


def _rf_change(world: World) -> AnyCommand:
    assert world.apply(CreateKeyspace("films", {"dc1": 2})) is None
    world.pass_s(1)
    return KeyspaceRfChange("films", {"dc1": 3})


def _tablet_move(world: World) -> AnyCommand:
    (row, *_) = _data(world.image)["music.songs"].rows
    source = next(name for name in row.reads if name in ("a1", "a2"))
    target = {"a1": "a2", "a2": "a1"}[source]
    return MoveTablets(
        (TabletMove(table="music.songs", tablet=0, from_node=source, to_node=target),)
    )


OPERATIONS: Final = {
    "join": Operation(lambda world: joining("a3", "a")),
    "decommission": Operation(lambda world: Leave("a2")),
    "remove": Operation(lambda world: Remove(node_id="a2"), "a2"),
    "replace": Operation(_replace, "a2"),
    "move": Operation(lambda world: MoveNode(node_id="a2", tokens=(1, 2**62))),
    "rebuild": Operation(lambda world: Rebuild(node_id="a2")),
    "rf change": Operation(_rf_change),
    "resize": Operation(lambda world: ResizeTable("music.songs", 16)),
    "tablet move": Operation(_tablet_move),
}


def _data(image: Image) -> dict[str, Placement]:
    """Return the placements of all keyspaces on the ring and of all tables."""
    placements, schema = image.ring.placements, image.schema
    found = {k.name: placements[k.placement] for k in schema.by_id.values() if not k.tablets}
    tables = schema.tables.values()
    return found | {schema.full_name(t): placements[t.placement] for t in tables}


def _held_bytes(image: Image) -> dict[str, dict[str, int]]:
    """Bytes by node and data id. Each keyspace and table has another size."""
    placements, found = _data(image), defaultdict[str, dict[str, int]](dict)
    for data in image.schema.all_data():
        for node_id, tokens in held(placements[data.name]).items():
            found[node_id][data.data_id] = round(_copy_bytes(data.name) * tokens / RING)
    return found


def _copy_bytes(name: str) -> int:
    return COPY_BYTES * len(name) ** 2


def _received_bytes(images: Sequence[Image]) -> float:
    """Return the bytes of all ranges that nodes began to serve, each time that they did.

    One replica sends a range; the others of a quorum send only differences, and there are none.
    """
    gained = 0
    for before, after in pairwise(images):
        old_data, new_data = _data(before), _data(after)
        for name in old_data.keys() & new_data.keys():
            old, new = old_data[name], new_data[name]
            if old is not new:
                starts = sorted({row.start for row in (*old.rows, *new.rows)})
                for start, end in pairwise([*starts, -MIN_TOKEN]):
                    was, now = {*old.row_for(start + 1).reads}, {*new.row_for(start + 1).reads}
                    gained += (end - start) * len(now - was) * _copy_bytes(name)
    return gained / RING


@pytest.mark.parametrize("name", OPERATIONS)
def test_plan_predicts_the_bytes_and_the_steps(name: str) -> None:
    world, operation = cluster(), OPERATIONS[name]
    if operation.dead:
        world.nodes[operation.dead].alive = False
    world.pass_s(DOWN_S)
    command, before = operation.command(world), world.image
    found = with_sizes(planned(world, command), before, _held_bytes(before), float(COPY_BYTES))
    assert found.verdict is not PlanVerdict.FAILS, found.failure
    began, world.balances = len(world.images), isinstance(command, Join | Leave | Remove | Replace)
    assert world.submit(envelope(command)) is None
    world.until(lambda: is_over(world, ASK), "its end")
    world.run()
    world.pass_s(3 * BALANCE_S)
    world.run()
    request = next(
        r for r in world.image.requests.requests.values() if r.submitted_epoch > before.epoch
    )
    assert request.status is RequestStatus.DONE, request.error
    states, _ = outcome(world, began)
    assert [step.state for step in found.plan.steps] == states
    moved = _received_bytes(world.images[began - 1 :])
    if name == "rebuild":
        moved = sum(_held_bytes(before)["a2"].values())
    assert found.size_bytes == pytest.approx(moved, rel=0.2)
    assert bool(found.duration_s) == bool(moved)
