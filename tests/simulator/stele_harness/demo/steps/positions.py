"""Every process must stand at the same epoch with the same state, by its own fold."""

from __future__ import annotations

from stele.cli.errors import CliError, UnreachableError
from stele.runtime.answers.position import Position
from stele_harness.demo.scene import Scene
from stele_harness.demo.site import Answers

DEADLINE_S = 30.0
NO_POSITION = frozenset({"placements", "console"})
"""placements answers for its tables, which have a check of their own; the console keeps no state."""


async def run(scene: Scene) -> None:
    members = await scene.members()
    services = [
        s
        for s in scene.site.stack().services
        if s.name not in NO_POSITION and (not _is_node(s.name) or s.name in members)
    ]
    found: dict[str, Position] = {}
    silent: dict[str, str] = {}

    async def agree() -> bool:
        found.clear()
        silent.clear()
        for service in services:
            try:
                url = f"{service.url}/v1/position"
                found[service.name] = await scene.site.get(url, Position)
            except (*Answers, CliError) as error:
                silent[service.name] = str(error) or repr(error)
        return not silent and len({(p.epoch, p.state_id, p.hash) for p in found.values()}) == 1

    try:
        await scene.site.until("every process to agree", agree, DEADLINE_S)
    except UnreachableError:
        detail = "; ".join(
            [
                *(f"{n}: epoch {p.epoch} {p.hash[:12]}" for n, p in found.items()),
                *(f"{n}: {why[:80]}" for n, why in silent.items()),
            ]
        )
        scene.timeline.check(NAME, False, detail)
        return
    position = next(iter(found.values()))
    scene.timeline.figure("epochs", position.epoch)
    scene.timeline.check(
        NAME,
        True,
        f"{', '.join(sorted(found))}: epoch {position.epoch}, hash {position.hash[:16]}...",
    )


NAME = "every process has the same state at the same epoch"


def _is_node(name: str) -> bool:
    return name[:1] == "n" and name[1:].isdigit()
