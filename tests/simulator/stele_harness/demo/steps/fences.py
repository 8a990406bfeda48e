"""Replica writes with a fenced-out version must be refused by every node; with the current one, not."""

from __future__ import annotations

import time

import aiohttp

from stele.agent.judging import Code
from stele.cli.errors import CliError
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.routed import REPLICA
from stele.node.cells import Cell
from stele.node.wire import BATCH_PATH, Write, decode_answers, encode
from stele.runtime.answers.metadata_log import KeyspacesPage, PlacementsPage
from stele_harness.demo.scene import KEYSPACE, Scene

TIMEOUT_S = 10.0
PROBES = 200


async def run(scene: Scene) -> None:
    """Of a range that version ``c`` changed: all versions below it, once ``c`` is fenced (I3)."""
    topology = await scene.site.topology("barrier")
    key, row = await _probe(scene)
    members = await scene.members()
    data_id = await _data_id(scene)
    coordinating = min(members)
    newest, fence = topology.topology.version, topology.topology.fence_version
    accepted: list[str] = []
    refused = 0
    for node_id in row.writes:
        for version in range(1, row.version):
            code = await _send(
                scene,
                node_id,
                members[node_id],
                _write_of(data_id, coordinating, key, topology.epoch, version),
            )
            if code is Code.STALE_VERSION:
                refused += 1
            else:
                accepted.append(f"{node_id} answered {code} to version {version}")
    current = [
        await _send(
            scene,
            node_id,
            members[node_id],
            _write_of(data_id, coordinating, key, topology.epoch, newest),
        )
        for node_id in row.writes
    ]
    works = bool(current) and all(code is Code.OK for code in current)
    scene.timeline.check(
        "no write with a fenced-out version is accepted",
        not accepted and refused > 0 and works and row.version <= fence,
        "; ".join(accepted[:3])
        or f"{refused} writes with versions 1 to {row.version - 1} to a range that version "
        f"{row.version} changed were refused as stale by {', '.join(row.writes)}; the same writes "
        f"with version {newest} were {'accepted' if works else f'answered {current}'}",
    )


async def _probe(scene: Scene) -> tuple[bytes, RangeReplicas]:
    """A key, and its range, whose replicas have changed since the cluster began."""
    for number in range(PROBES):
        key = f"fence/probe-{number}".encode()
        (page,) = await scene.site.pages(
            "/v1/placements", PlacementsPage, keyspace=KEYSPACE, token=token_of(key)
        )
        if page.rows[0].version > 1:
            return key, page.rows[0]
    raise CliError(f"None of {PROBES} keys lies in a range that has ever changed.")


async def _data_id(scene: Scene) -> str:
    pages = await scene.site.pages("/v1/keyspaces", KeyspacesPage)
    return next(k.data_id for page in pages for k in page.keyspaces if k.name == KEYSPACE)


def _write_of(data_id: str, coordinating: str, key: bytes, epoch: int, version: int) -> Write:
    return Write(
        version=version,
        epoch=epoch,
        coordinating=coordinating,
        data_id=data_id,
        token=token_of(key),
        key=key,
        cell=Cell(time.time_ns() // 1000, False, b"probe of version %d" % version),
    )


async def _send(scene: Scene, node_id: str, address: str, op: Write) -> Code:
    async with scene.site.http.post(
        address + BATCH_PATH,
        data=encode([op]),
        headers={REPLICA: node_id},
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    ) as answer:
        body = await answer.read()
        answer.raise_for_status()
    return decode_answers(body)[0].code
