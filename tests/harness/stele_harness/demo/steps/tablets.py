"""A table in tablets: it is split while it is written, fills a new node, and empties one that leaves."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator

from stele.cli.commands.data import data_path
from stele.cli.output import counted
from stele.domain.balancer.load import CRITICAL_USE
from stele.domain.commands import AlterTable, CreateKeyspace, CreateTable, Leave
from stele.domain.model.schema import TableOptions
from stele.domain.names import NodeState
from stele.runtime.answers.metadata_log import PlacementsPage
from stele.runtime.answers.tablet_balancer import BalanceAnswer, BalanceState
from stele_harness.demo.load import ask_until_answered
from stele_harness.demo.scene import Scene
from stele_harness.demo.site import Never
from stele_harness.demo.steps.membership import start_node

SHELVES = "shelves"
TABLE = "shelves.digests"
COPIES = 2
FIRST, SPLIT = 8, 32
CLIENTS = 4
DEADLINE_S = 600.0


async def run(scene: Scene) -> None:
    keyspace = CreateKeyspace(SHELVES, {"dc1": COPIES}, tablets=True, initial_tablets=FIRST)
    await scene.site.submit(keyspace, "demo")
    outcome = await scene.site.submit(CreateTable(TABLE), "demo")
    scene.timeline.note(f"table {TABLE} has {FIRST} tablets at epoch {outcome.epoch}")
    await _split(scene)
    name = await _fill(scene)
    await _empty(scene, name)
    wrong = await _read_all(scene)
    scene.timeline.check(
        "every row of a table is read back after its tablets were split and moved",
        not wrong and bool(scene.digests),
        "; ".join(wrong[:3]) or f"{len(scene.digests)} rows of {TABLE} at QUORUM",
    )


async def _split(scene: Scene) -> None:
    """Its option says so, and the balancer sees to it; every file's digest is written meanwhile."""
    options = TableOptions(min_tablet_count=SPLIT)
    began = time.monotonic()
    writing = asyncio.create_task(_write_all(scene))
    await scene.site.submit(AlterTable(TABLE, options), f"to have {SPLIT} tablets")

    async def is_split() -> bool:
        return await _tablets(scene) == SPLIT

    await scene.site.until(f"{TABLE} to have {SPLIT} tablets", is_split, DEADLINE_S)
    took_s = time.monotonic() - began
    failed = await writing
    scene.timeline.figure("split_s", took_s)
    scene.timeline.check(
        "a table is split while it is written",
        not failed,
        "; ".join(failed[:3])
        or f"{FIRST} tablets became {SPLIT} in {took_s:.1f} s, {len(scene.digests)} rows acknowledged",
    )


async def _fill(scene: Scene) -> str:
    """A node joins, and the balancer gives it its share; its name."""
    name = await start_node(scene, "r2")
    found = await _until_balanced(scene, name)
    held = {node_id: node.tablets for node_id, node in sorted(found.nodes.items())}
    shown = ", ".join(f"{node_id} {tablets}" for node_id, tablets in held.items())
    scene.timeline.check(
        "a new node is given its share of the tablets",
        held[name] >= COPIES * SPLIT // (2 * len(held)),
        f"replicas of {SPLIT} tablets: {shown}",
    )
    return name


async def _empty(scene: Scene, name: str) -> None:
    outcome = await scene.site.submit(Leave(name), "the demo needed it for tablets")

    async def has_left() -> bool:
        return await scene.node_is(name, NodeState.LEFT)

    await scene.site.until(f"{name} to leave", has_left, DEADLINE_S)
    found = await _balance(scene)
    left = found.nodes.get(name)
    held = left is None or not left.tablets
    scene.timeline.check(
        "a node that leaves gives its tablets away first",
        held,
        f"request {outcome.request_id}: {name} has {'none' if held else 'some'}",
    )


async def _until_balanced(scene: Scene, name: str) -> BalanceAnswer:
    shown = ""

    async def is_balanced() -> bool:
        nonlocal shown
        found = await _balance(scene)
        check_has_room(found, name)
        held = found.nodes[name].tablets if name in found.nodes else 0
        moving = counted(len(found.under_way), "tablet moves", "tablets move")
        text = f"{found.state}: {moving}, {name} has {held}"
        if text != shown:
            shown = text
            scene.timeline.note(f"epoch {found.epoch:>4}  {text}", "cyan")
        return held > 0 and found.state is BalanceState.BALANCED

    await scene.site.until("the tablets to be even", is_balanced, DEADLINE_S)
    return await _balance(scene)


def check_has_room(found: BalanceAnswer, name: str) -> None:
    """All nodes of the demo are on one disk. Raises Never where that is so full that nothing moves to them."""
    if name in found.full:
        raise Never(
            "tablet-balancer",
            f"the disk is more than {CRITICAL_USE:.0%} full, so {name} gets no tablets; make room, and run the"
            " demo again",
        )


async def _balance(scene: Scene) -> BalanceAnswer:
    return await scene.site.get(scene.site.url("tablet-balancer", "/v1/balance"), BalanceAnswer)


async def _tablets(scene: Scene) -> int:
    page = await scene.site.get(
        scene.site.url("metadata-log", "/v1/placements"), PlacementsPage, keyspace=TABLE, limit=1
    )
    return page.ranges


async def _write_all(scene: Scene) -> list[str]:
    """Rows that were not acknowledged."""

    async def write(url: str, key: str, digest: bytes) -> str:
        row = url + data_path(TABLE, key)
        found = await ask_until_answered(scene.site.http, "PUT", row, digest)
        return "" if found.status == 200 else f"{key} through {url}: {found.why()}"

    return await _each_row(scene, write)


async def _read_all(scene: Scene) -> list[str]:
    """Rows that are not found as they were written."""

    async def read(url: str, key: str, digest: bytes) -> str:
        row = url + data_path(TABLE, key)
        found = await ask_until_answered(scene.site.http, "GET", row)
        return "" if found == (200, digest) else f"{key} through {url}: {found.status}"

    return await _each_row(scene, read)


async def _each_row(scene: Scene, ask: Callable[[str, str, bytes], Awaitable[str]]) -> list[str]:
    """What went wrong with each row, through one member after the other."""
    members = (await scene.members()).values()
    work = iter(zip(scene.digests.items(), itertools.cycle(members), strict=False))
    wrong = list[str]()

    async def ask_some(mine: Iterator[tuple[tuple[str, str], str]]) -> None:
        for (key, digest), url in mine:
            why = await ask(url, key, digest.encode())
            if why:
                wrong.append(why)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(ask_some(work))
    return wrong
