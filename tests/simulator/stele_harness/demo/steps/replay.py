"""The whole log, folded from offset 0 by a process of its own, must give the same state."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from stele.runtime.answers.position import Position
from stele_harness.demo.scene import Scene

DEADLINE_S = 60.0


class Replayed(msgspec.Struct, frozen=True):
    """What ``stele log replay --json`` prints."""

    epoch: int
    state_id: str
    hash: str
    records: int
    losers: int
    took_s: float
    epochs_per_s: int


async def run(scene: Scene) -> None:
    url = f"{scene.site.service('metadata-log').url}/v1/position"
    position = await scene.site.get(url, Position)
    arguments = ("log", "replay", "--json", "--epoch", str(position.epoch))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stele.cli", *arguments, "--dir", str(scene.directory)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(child.communicate(), DEADLINE_S)
    except TimeoutError:
        child.kill()
        await child.wait()
        scene.timeline.check(NAME, False, f"the replay took more than {DEADLINE_S:.0f} s")
        return
    if child.returncode != 0:
        scene.timeline.check(NAME, False, errors.decode()[-500:])
        return
    found = msgspec.json.decode(out, type=Replayed)
    same = (found.epoch, found.state_id, found.hash) == (
        position.epoch,
        position.state_id,
        position.hash,
    )
    scene.timeline.figure("replay_epochs_per_s", found.epochs_per_s)
    scene.timeline.figure("log_records", found.records)
    scene.timeline.check(
        NAME,
        same,
        f"{found.epoch} epochs from {found.records} records in {found.took_s:.2f} s, "
        f"hash {found.hash[:16]}... {'equals' if same else 'is not'} {position.hash[:16]}...",
    )


NAME = "a replay of the whole log gives the same state"
