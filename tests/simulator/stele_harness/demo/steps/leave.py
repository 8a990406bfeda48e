"""The first node leaves while the load runs; the metadata-log is killed while data moves."""

from __future__ import annotations

from stele.domain.commands import Leave
from stele.domain.names import NodeState, RequestStatus
from stele_harness.demo.operation import Fault, follow_operation
from stele_harness.demo.scene import Scene

LEAVING = "n1"


async def run(scene: Scene) -> None:
    outcome = await scene.site.submit(Leave(LEAVING), "the demo replaces it")
    scene.timeline.note(f"decommission of {LEAVING} accepted at epoch {outcome.epoch}")
    fault = Fault("metadata-log")
    request = await follow_operation(scene, outcome.request_id, fault)
    left = await scene.node_is(LEAVING, NodeState.LEFT)
    scene.timeline.check(
        "a node leaves under load while the metadata-log is killed",
        request.status is RequestStatus.DONE and left and fault.fired,
        f"request {request.request_id} is {request.status}, {LEAVING} "
        f"{'has left' if left else 'is still there'}",
    )
