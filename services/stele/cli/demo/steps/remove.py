"""Another node dies for good: it keeps others from leaving until it is removed.

Once it is, what waited for it waits for its ranges, and then runs.
"""

from __future__ import annotations

from stele.cli.demo.death import is_down, kill_for_good, say_why
from stele.cli.demo.scene import Scene
from stele.cli.demo.several import follow_several, one_waits_for_the_other
from stele.domain.commands import Leave, Remove
from stele.domain.names import NodeState

DEAD = "n2"
LEAVING = "n4"


async def run(scene: Scene) -> None:
    await kill_for_good(scene, DEAD)
    await is_down(scene, DEAD)
    leave = await scene.site.submit(Leave(LEAVING), "a new node takes over")
    await say_why(scene, leave.request_id, until=f"the cause is {DEAD}: is down")
    remove = await scene.site.submit(Remove(node_id=DEAD), "its machine is gone")
    scene.timeline.note(f"remove {DEAD} is asked for; the others stream what it had to each other")
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
        "a leave waits for the ranges of another, then runs",
        waited and left,
        f"{LEAVING} {'has left' if left else 'is still there'}"
        f"{', after the removal' if waited else '; it was not seen waiting'}",
    )
