"""Real data: the files of the running Python's standard library without its tests, written at QUORUM."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import platform
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from stele.cli.commands.data import data_path
from stele.cli.errors import UnreachableError
from stele.cli.output import size
from stele.domain.commands import CreateKeyspace
from stele_harness.demo.load import ask_until_answered
from stele_harness.demo.scene import KEYSPACE, REPLICATION, Scene
from stele_harness.demo.timeline import Bar

NOT_DATA = frozenset({"site-packages", "dist-packages", "__pycache__", "test"})
LARGEST_BYTES = 8_000_000
"""Larger files, such as a static libpython of 45 MB, are left out."""
WRITERS = 12

File = tuple[Path, int]
"""Where it is, and its size in bytes."""


async def run(scene: Scene) -> None:
    outcome = await scene.site.submit(CreateKeyspace(KEYSPACE, dict(REPLICATION)), "demo")
    scene.timeline.note(f"keyspace {KEYSPACE} with three copies exists at epoch {outcome.epoch}")
    root = Path(sysconfig.get_path("stdlib"))
    files, left_out = await asyncio.to_thread(library_files, root)
    total = sum(size_bytes for _, size_bytes in files)
    scene.timeline.note(
        f"writing {len(files)} files, {size(total)}: the standard library of Python "
        f"{platform.python_version()} without its tests"
        + (f" ({left_out} larger than {size(LARGEST_BYTES)} left out)" if left_out else "")
    )
    addresses = tuple((await scene.members()).values())
    began = time.monotonic()
    with scene.timeline.progress("writing at QUORUM", total) as bar:
        await _write_all(scene, root, files, addresses, total, bar)
    took_s = time.monotonic() - began
    scene.timeline.note(
        f"{len(files)} files acknowledged in {took_s:.1f} s: {len(files) / took_s:.0f} writes/s, "
        f"{size(total / took_s)}/s, each on a quorum of three nodes"
    )
    scene.timeline.figure("library_files", len(files))
    scene.timeline.figure("library_bytes", total)
    scene.timeline.figure("library_write_s", took_s)
    scene.timeline.figure("library_writes_per_s", len(files) / took_s)


def library_files(root: Path) -> tuple[list[File], int]:
    """The files that are loaded with their sizes, sorted, and how many were too large."""
    found: list[File] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_DATA]
        paths = (Path(folder, name) for name in names)
        found.extend((path, path.stat().st_size) for path in paths if path.is_file())
    kept = sorted(file for file in found if file[1] <= LARGEST_BYTES)
    return kept, len(found) - len(kept)


async def _write_all(
    scene: Scene,
    root: Path,
    files: list[File],
    addresses: tuple[str, ...],
    total_bytes: int,
    bar: Bar,
) -> None:
    todo = iter(zip(files, itertools.cycle(addresses), strict=False))
    done_bytes = 0

    async def write_some(work: Iterator[tuple[File, str]]) -> None:
        nonlocal done_bytes
        for (path, _), address in work:
            content = path.read_bytes()
            key = path.relative_to(root).as_posix()
            await _write(scene, address, key, content)
            scene.digests[key] = hashlib.sha256(content).hexdigest()
            done_bytes += len(content)
            bar.show(done_bytes, total_bytes, f"{len(scene.digests)} files")

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(write_some(todo))


async def _write(scene: Scene, address: str, key: str, content: bytes) -> None:
    url = address + data_path(KEYSPACE, key)
    found = await ask_until_answered(scene.site.http, "PUT", url, content)
    if found.status != 200:
        raise UnreachableError(f"{key} could not be written through {address}: {found.why()}")
