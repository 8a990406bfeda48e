"""A node whose machine is gone: killing it for good, and what the command line says of it."""

from __future__ import annotations

import asyncio

from stele.cli.client import Client
from stele.cli.commands.why import look
from stele.cli.local.control import Control, Deed, ask_stack
from stele.cli.places import find_places
from stele.runtime.answers.session_guard import NodeLiveness
from stele.words.explain import story
from stele_harness.demo.scene import Scene

KILL_DEADLINE_S = 30.0
DOWN_DEADLINE_S = 60.0
SILENT_S = 5.5
"""A coordinator takes a node for down after 5 s, by its own clock."""


async def kill_for_good(scene: Scene, name: str) -> None:
    """``stele stack kill``: nobody starts it again."""
    control = Control(deed=Deed.KILL, name=name)
    await asyncio.to_thread(ask_stack, scene.directory, control, KILL_DEADLINE_S)
    scene.timeline.note(f"kill -9 {name}, and nobody starts it again", "bold red")


async def is_down(scene: Scene, name: str) -> None:
    """Wait until everybody takes the node for down."""
    url = scene.site.url("session-guard", "/v1/nodes")

    async def silent() -> bool:
        rows = await scene.site.get(url, list[NodeLiveness])
        return any(r.node_id == name and (r.silent_for_s or 0.0) > SILENT_S for r in rows)

    await scene.site.until(f"{name} to be down", silent, DOWN_DEADLINE_S)


async def say_why(scene: Scene, request_id: str, until: str) -> None:
    """Show ``stele why`` of a request once it says ``until``. Raises UnreachableError when it never does."""
    said: list[str] = []

    async def says_so() -> bool:
        said[:] = await asyncio.to_thread(_why, scene, request_id)
        return any(until in line for line in said)

    await scene.site.until(f"`stele why` to say '{until}'", says_so, DOWN_DEADLINE_S)
    scene.timeline.note("`stele why` says:")
    for line in said:
        scene.timeline.note(f"  {line}", "yellow")


def _why(scene: Scene, request_id: str) -> list[str]:
    client = Client(find_places((), scene.directory, {}))
    try:
        return [text for text, _ in story(look(client, request_id))]
    finally:
        client.close()
