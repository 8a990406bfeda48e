"""Every file, through every remaining node, by its SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator

import aiohttp

from stele.cli.commands.data import data_path
from stele_harness.demo.scene import KEYSPACE, Scene
from stele_harness.demo.timeline import Bar

READERS = 12
TIMEOUT_S = 20.0


async def run(scene: Scene) -> None:
    members = await scene.members()
    work = [(node, url, key) for node, url in members.items() for key in scene.digests]
    wrong: list[str] = []
    began = time.monotonic()
    with scene.timeline.progress("reading at QUORUM", None) as bar:
        read_bytes = await _read_all(scene, work, wrong, bar)
    took_s = time.monotonic() - began
    scene.timeline.figure("read_back_s", took_s)
    scene.timeline.figure("reads_per_s", len(work) / took_s)
    scene.timeline.figure("read_back_bytes", read_bytes)
    scene.timeline.check(
        "every file is read back with its SHA-256 through every node",
        not wrong and bool(scene.digests),
        "; ".join(wrong[:3])
        or f"{len(scene.digests)} files through each of {', '.join(sorted(members))} at QUORUM, "
        f"{len(work) / took_s:.0f} reads/s",
    )


async def _read_all(
    scene: Scene, work: list[tuple[str, str, str]], wrong: list[str], bar: Bar
) -> int:
    todo, read_bytes, done = iter(work), 0, 0

    async def read_some(mine: Iterator[tuple[str, str, str]]) -> None:
        nonlocal read_bytes, done
        for node, url, key in mine:
            content, why = await _read(scene, url, key)
            if hashlib.sha256(content).hexdigest() != scene.digests[key]:
                wrong.append(f"{key} through {node}: {why or f'{len(content)} other bytes'}")
            read_bytes += len(content)
            done += 1
            bar.show(read_bytes, None, f"{done} of {len(work)} reads")

    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(read_some(todo))
    return read_bytes


async def _read(scene: Scene, url: str, key: str) -> tuple[bytes, str]:
    try:
        async with scene.site.http.get(
            url + data_path(KEYSPACE, key),
            params={"consistency": "quorum"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as answer:
            body = await answer.read()
            return (body, "") if answer.status == 200 else (b"", f"status {answer.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        return b"", repr(error)
