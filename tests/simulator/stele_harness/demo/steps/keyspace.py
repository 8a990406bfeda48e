"""A keyspace with three copies, for the load."""

from __future__ import annotations

from stele.domain.commands import CreateKeyspace
from stele_harness.demo.scene import KEYSPACE, REPLICATION, Scene


async def run(scene: Scene) -> None:
    outcome = await scene.site.submit(CreateKeyspace(KEYSPACE, dict(REPLICATION)), "drill")
    scene.timeline.note(f"keyspace {KEYSPACE} with three copies exists at epoch {outcome.epoch}")
