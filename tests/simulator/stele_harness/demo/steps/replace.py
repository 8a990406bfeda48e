"""A node dies for good while the load runs; a new one takes its place, its tokens and its data."""

from __future__ import annotations

from stele.domain.names import NodeState, RequestStatus
from stele_harness.demo.death import kill_for_good, say_why
from stele_harness.demo.operation import follow_operation
from stele_harness.demo.scene import Scene
from stele_harness.demo.steps.join import request_of, start_node

DEAD = "n3"


async def run(scene: Scene) -> None:
    dead = await scene.site.node(DEAD)
    assert dead is not None
    await kill_for_good(scene, DEAD)
    name = await start_node(scene, dead.rack, replace=DEAD)
    request_id = await request_of(scene, name)
    await say_why(scene, request_id, until=DEAD)
    request = await follow_operation(scene, request_id)
    for removal in await scene.site.requests():
        if removal.removes_node and removal.node_id == DEAD:  # its tablets are rebuilt first
            await follow_operation(scene, removal.request_id)
    new = await scene.site.node(name)
    same = new is not None and new.state is NodeState.NORMAL and new.tokens == dead.tokens
    left = await scene.node_is(DEAD, NodeState.LEFT)
    scene.timeline.check(
        "a dead node is replaced under load",
        request.status is RequestStatus.DONE and same and left,
        f"request {request.request_id} is {request.status}, {name} "
        f"{'has' if same else 'has not'} the {len(dead.tokens)} tokens of {DEAD}",
    )
