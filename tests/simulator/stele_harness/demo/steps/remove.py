"""Another node dies for good and is removed under load, while a living one leaves."""

from __future__ import annotations

from stele.domain.commands import Leave, Remove
from stele.domain.names import NodeState
from stele_harness.demo.death import is_down, kill_for_good
from stele_harness.demo.scene import Scene
from stele_harness.demo.several import follow_several, one_waits_for_the_other

DEAD = "n2"
LEAVING = "n4"


async def run(scene: Scene) -> None:
    """Ask for both at once: their ranges meet, so one of the requests waits for the other."""
    await kill_for_good(scene, DEAD)
    await is_down(scene, DEAD)
    remove = await scene.site.submit(Remove(node_id=DEAD), "its machine is gone")
    leave = await scene.site.submit(Leave(LEAVING), "a new node takes over")
    scene.timeline.note(f"remove {DEAD} and decommission {LEAVING} are asked for at once")
    requests = [remove.request_id, leave.request_id]
    waited = await follow_several(scene, requests, one_waits_for_the_other)
    removed = await scene.node_is(DEAD, NodeState.LEFT)
    left = await scene.node_is(LEAVING, NodeState.LEFT)
    scene.timeline.check(
        "a dead node is removed under load",
        removed,
        f"{DEAD} {'has left' if removed else 'is still there'}",
    )
    scene.timeline.check(
        "of two requests for the same ranges one waits for the other",
        waited and left,
        f"{LEAVING} {'has left' if left else 'is still there'}"
        f"{'; one request waited' if waited else '; no request was seen waiting'}",
    )
