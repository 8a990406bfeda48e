"""Two nodes join at once, as one transition.

The coordinator stands still (SIGSTOP) until both have asked, so that it sees them together.
"""

from __future__ import annotations

import asyncio

from stele.domain.names import NodeState
from stele_harness.demo.scene import Scene
from stele_harness.demo.several import follow_several, share_a_transition
from stele_harness.demo.steps.join import request_of, start_node

RACKS = ("r1", "r2")


async def run(scene: Scene) -> None:
    paused = scene.site.pause("coordinator")
    scene.timeline.note("the coordinator stands still while two nodes ask to join")
    try:
        names = await asyncio.gather(*(start_node(scene, rack) for rack in RACKS))
        requests = [await request_of(scene, name) for name in names]
    finally:
        scene.site.resume(paused)
    scene.timeline.note(f"{' and '.join(names)} are pending: it goes on")
    shared = await follow_several(scene, requests, share_a_transition)
    normal = [await scene.node_is(name, NodeState.NORMAL) for name in names]
    scene.timeline.check(
        "two nodes join as one transition",
        shared and all(normal),
        f"{' and '.join(names)} {'shared' if shared else 'did not share'} a transition",
    )
