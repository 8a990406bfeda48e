"""Begin the load that lasts until the end, and follow who can be written through."""

from __future__ import annotations

import asyncio

from stele.domain.names import OWNS_TOKENS
from stele_harness.demo.scene import Scene

WARM_UP_WRITES = 100
DEADLINE_S = 30.0
FOLLOW_S = 0.3


async def run(scene: Scene) -> None:
    addresses = tuple((await scene.members()).values())
    scene.load.start(addresses)

    async def warm() -> bool:
        return scene.load.account.writes_acknowledged >= WARM_UP_WRITES

    await scene.site.until(f"{WARM_UP_WRITES} acknowledged writes of the load", warm, DEADLINE_S)
    keys = sum(len(keys) for keys in scene.load.keys)
    scene.timeline.note(
        f"{len(scene.load.keys)} workers write and read {keys} keys at QUORUM from now on, and "
        "keep account of every answer"
    )
    scene.background.append(asyncio.create_task(_follow_members(scene)))


async def _follow_members(scene: Scene) -> None:
    """A client goes by the newest metadata that it can get, and keeps what it has otherwise."""
    while scene.load.running:
        nodes = await scene.site.nodes_or_none()
        if nodes is not None:
            found = tuple(n.address for n in nodes if n.state in OWNS_TOKENS)
            scene.load.nodes = found or scene.load.nodes
        await asyncio.sleep(FOLLOW_S)
