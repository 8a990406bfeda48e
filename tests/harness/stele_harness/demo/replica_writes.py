"""Writes to one replica of a chosen version, as a coordinating node sends them: fenced versions are refused."""

from __future__ import annotations

import time
from typing import Final

import aiohttp

from stele.agent.judging import Code
from stele.domain.ring.partitioner import token_of
from stele.domain.routed import REPLICA
from stele.node.cells import Cell
from stele.node.wire import BATCH_PATH, Write, decode_answers, encode

TIMEOUT_S: Final = 60.0


def probe_write(data_id: str, coordinating: str, key: bytes, epoch: int, version: int) -> Write:
    return Write(
        version=version,
        epoch=epoch,
        coordinating=coordinating,
        data_id=data_id,
        token=token_of(key),
        key=key,
        cell=Cell(time.time_ns() // 1000, False, b"probe of version %d" % version),
    )


async def send_probe(
    http: aiohttp.ClientSession,
    node_id: str,
    address: str,
    write: Write,
    timeout_s: float = TIMEOUT_S,
) -> Code:
    """Return the replica's answer. Raises aiohttp.ClientError, TimeoutError."""
    async with http.post(
        address + BATCH_PATH,
        data=encode([write]),
        headers={REPLICA: node_id},
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    ) as answer:
        body = await answer.read()
        answer.raise_for_status()
    return decode_answers(body)[0].code
