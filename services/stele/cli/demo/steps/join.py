"""A fourth node joins while the load runs; the coordinator is killed while data moves."""

from __future__ import annotations

import asyncio

from stele.cli.demo.operation import Fault, follow_operation
from stele.cli.demo.scene import Scene
from stele.cli.local.control import Control, ask_stack
from stele.domain.names import NodeState, RequestStatus

START_DEADLINE_S = 60.0


async def run(scene: Scene) -> None:
    answer = await asyncio.to_thread(
        ask_stack, scene.directory, Control(rack="r1"), START_DEADLINE_S
    )
    scene.timeline.note(f"{answer.name} runs at {answer.url} in rack r1 and asks to join")

    async def known() -> bool:
        node = (await scene.site.view()).node(answer.name)
        return node is not None and bool(node.request_id)

    await scene.site.until(f"{answer.name}'s request", known, START_DEADLINE_S)
    node = (await scene.site.view()).node(answer.name)
    assert node is not None
    fault = Fault("coordinator")
    request = await follow_operation(scene, node.request_id, fault)
    normal = await scene.node_is(answer.name, NodeState.NORMAL)
    scene.timeline.check(
        "a node joins under load while the coordinator is killed",
        request.status is RequestStatus.DONE and normal and fault.fired,
        f"request {request.request_id} is {request.status}, {answer.name} "
        f"{'owns its ranges' if normal else 'is no member'}",
    )
