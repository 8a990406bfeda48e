"""Replica writes with a fenced-out version must be refused by every node; with the current one, not."""

from __future__ import annotations

import time

import aiohttp

from stele.cli.demo.scene import KEYSPACE, Scene
from stele.cli.models import PlacementRow, StateView
from stele.domain.ring.tokens import token_of
from stele.node.cells import Cell
from stele.node.wire import BATCH_PATH, Code, Write, decode_answers, encode

TIMEOUT_S = 10.0
PROBE = "fence/probe"


async def run(scene: Scene) -> None:
    view = await scene.site.view()
    topology = view.topology
    accepted: list[str] = []
    refused = 0
    members = await scene.members()
    for node_id, address in members.items():
        for version in range(1, topology.fence_version):
            code = await _write(scene, address, view, version)
            if code is Code.STALE_VERSION:
                refused += 1
            else:
                accepted.append(f"{node_id} answered {code} to version {version}")
    current = [
        await _write(scene, members[node_id], view, topology.version)
        for node_id in _replicas(view, token_of(PROBE.encode()))
    ]
    works = bool(current) and all(code is Code.OK for code in current)
    scene.timeline.check(
        "no write with a fenced-out version is accepted",
        not accepted and refused > 0 and works,
        "; ".join(accepted[:3])
        or f"{refused} writes with versions 1 to {topology.fence_version - 1} sent to "
        f"{', '.join(sorted(members))} were refused as stale; the same writes with version "
        f"{topology.version} were {'accepted' if works else f'answered {current}'}",
    )


async def _write(scene: Scene, address: str, view: StateView, version: int) -> Code:
    key = PROBE.encode()
    op = Write(
        version=version,
        epoch=view.epoch,
        keyspace=KEYSPACE,
        token=token_of(key),
        key=key,
        cell=Cell(time.time_ns() // 1000, False, b"probe of version %d" % version),
    )
    async with scene.site.http.post(
        address + BATCH_PATH,
        data=encode([op]),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    ) as answer:
        body = await answer.read()
        answer.raise_for_status()
    return decode_answers(body)[0].code


def _replicas(view: StateView, token: int) -> tuple[str, ...]:
    placement = next(k.placement for k in view.keyspaces if k.name == KEYSPACE)
    rows = view.placements[placement]
    return next(row.writes for row in rows if holds(row, token))


def holds(row: PlacementRow, token: int) -> bool:
    """Start exclusive, end inclusive; a range whose end is not above its start wraps."""
    if row.start < row.end:
        return row.start < token <= row.end
    return token > row.start or token <= row.end
