"""Operations that must be refused, before anything happens."""

from __future__ import annotations

from stele.cli.errors import RefusedError
from stele.domain.commands import AnyCommand, Join, Leave
from stele_harness.demo.scene import Scene


async def run(scene: Scene) -> None:
    stranger = Join(
        node_id="n5", cluster="another", address="http://127.0.0.1:9", dc="dc1", rack="r2"
    )
    await _refused(scene, "a node of another cluster", stranger, "wrong_cluster")
    remaining = max(await scene.members())
    await _refused(scene, "a leave below the replication factor", Leave(remaining), "too_few_nodes")
    await _refused(scene, "a node that has left", Leave("n1"), "node_left")


async def _refused(scene: Scene, what: str, command: AnyCommand, code: str) -> None:
    try:
        outcome = await scene.site.submit(command, "the demo wants a refusal")
    except RefusedError as error:
        scene.timeline.check(f"{what} is refused", error.code == code, error.line())
    else:
        scene.timeline.check(f"{what} is refused", False, f"accepted at epoch {outcome.epoch}")
