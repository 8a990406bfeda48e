"""Wait until the first nodes are members: they ask to join by themselves."""

from __future__ import annotations

from stele.domain.names import NodeState
from stele_harness.demo.scene import Scene

FIRST_NODES = ("n1", "n2", "n3")
DEADLINE_S = 90.0


async def run(scene: Scene) -> None:
    async def all_normal() -> bool:
        nodes, requests = await scene.site.nodes(), await scene.site.requests()
        normal = {n.node_id for n in nodes if n.state is NodeState.NORMAL}
        return normal >= {*FIRST_NODES} and all(r.finished_epoch for r in requests)

    await scene.site.until("three nodes to be members", all_normal, DEADLINE_S)
    nodes = {node.node_id: node for node in await scene.site.nodes()}
    for request in sorted(await scene.site.requests(), key=lambda r: (r.started_epoch, r.node_id)):
        node = nodes[request.node_id]
        took_ms = request.finished_at_ms - request.started_at_ms
        scene.timeline.note(
            f"{node.node_id} joined in epochs {request.started_epoch} to {request.finished_epoch}, "
            f"{took_ms} ms: {node.dc}/{node.rack}, {len(node.tokens)} tokens"
        )
