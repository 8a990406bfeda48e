"""A run of the kit: scenes in order until one fails, and the broken rules."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stele.runtime.settings import KafkaSettings
from stele_harness.conformance.cluster import KitCluster, ServiceEnded
from stele_harness.conformance.rules import Broken, Wrong
from stele_harness.conformance.scene_steps import Scene
from stele_harness.conformance.scenes import SCENES


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. ``scenes`` were played to their end.

    ``not_asked``, ``not_tried``, ``not_counted`` and ``no_columns`` give the reason why a check was
    left out: judging requests, writing values, counting what is left after deletions, and rows of
    tables with columns. Empty: the check was done.
    """

    scenes: tuple[str, ...]
    broken: tuple[Broken, ...]
    not_asked: str = ""
    not_tried: str = ""
    not_counted: str = ""
    no_columns: str = ""

    @property
    def passed(self) -> bool:
        return not self.broken


def name_of(scene: Scene) -> str:
    return getattr(scene, "__name__", "scene").replace("_", " ")


def scenes_of(only: Sequence[str]) -> list[Scene]:
    """Return the first scene and the named ones; all if none is named."""
    first, *others = SCENES
    return [first, *(scene for scene in others if not only or name_of(scene) in only)]


async def run_kit(
    kafka: KafkaSettings,
    folder: Path,
    argv: Sequence[str],
    on_scene: Callable[[str, Sequence[Broken]], None] = lambda name, broken: None,
    only: Sequence[str] = (),
    patience: float = 1.0,
) -> Result:
    """Play all scenes with agents of this command line. Stop at the first scene that breaks a rule.

    ``only`` names the scenes to play after the first one; empty: all. ``patience`` multiplies all
    time limits.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    played = list[str]()
    name = f"kit-{uuid.uuid4().hex[:8]}"
    async with KitCluster(kafka, name, folder, argv, patience) as cluster:
        broken = cluster.watch.broken
        for scene in scenes_of(only):
            try:
                await scene(cluster)
            except Wrong as wrong:
                if wrong.broken not in broken:
                    broken.append(wrong.broken)
            except (ServiceEnded, TimeoutError, OSError) as error:
                broken.append(
                    Broken("kit", "-", f"{name_of(scene)} could not be played: {error!r}")
                )
            on_scene(name_of(scene), broken)
            if broken:
                break
            played.append(name_of(scene))
        await asyncio.sleep(0)
    return Result(
        scenes=tuple(played),
        broken=tuple(broken),
        not_asked=cluster.not_asked,
        not_tried=cluster.values.not_tried,
        not_counted=cluster.values.not_counted,
        no_columns=cluster.no_columns,
    )
