"""A fourth node joins while the load runs; the coordinator is killed while data moves."""

from __future__ import annotations

import asyncio

from stele.cli.local.control import Control, ask_stack
from stele.domain.names import NodeState, RequestStatus
from stele_harness.demo.operation import Fault, follow_operation
from stele_harness.demo.scene import Scene

START_DEADLINE_S = 60.0


async def run(scene: Scene) -> None:
    name = await start_node(scene, "r1")
    request_id = await request_of(scene, name)
    fault = Fault("coordinator")
    request = await follow_operation(scene, request_id, fault)
    normal = await scene.node_is(name, NodeState.NORMAL)
    scene.timeline.check(
        "a node joins under load while the coordinator is killed",
        request.status is RequestStatus.DONE and normal and fault.fired,
        f"request {request.request_id} is {request.status}, {name} "
        f"{'owns its ranges' if normal else 'is no member'}",
    )


async def start_node(scene: Scene, rack: str, replace: str = "") -> str:
    """One more node of the stack, which asks by itself to join, or to take a dead one's place; its name."""
    control = Control(rack=rack, replace=replace)
    answer = await asyncio.to_thread(ask_stack, scene.directory, control, START_DEADLINE_S)
    asks = f"to replace {replace}" if replace else "to join"
    scene.timeline.note(f"{answer.name} runs at {answer.url} in rack {rack} and asks {asks}")
    return answer.name


async def request_of(scene: Scene, node_id: str) -> str:
    """The id of the node's request, once the log has it."""

    async def known() -> bool:
        node = await scene.site.node(node_id)
        return node is not None and bool(node.request_id)

    await scene.site.until(f"{node_id}'s request", known, START_DEADLINE_S)
    node = await scene.site.node(node_id)
    assert node is not None
    return node.request_id
