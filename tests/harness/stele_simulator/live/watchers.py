"""Observers: streams of epochs that resume after interruptions, reads of the state, and writes that must be
rejected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from stele.domain.image import Image
from stele_harness.demo.replica_writes import probe_write, send_probe
from stele_simulator.live.clients import KEYSPACE, Members
from stele_simulator.live.history import History, Probe, StateRead, WatchedEpoch
from stele_simulator.live.site import ANSWER_TIMEOUT_S

RECONNECT_S: Final = 0.3
SILENCE_S: Final = 15.0
"""The service pings every 10 s."""
LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024
"""An epoch of the log has at most 8 MiB; JSON needs more."""
READ_PAUSE_S: Final = 0.8
READ_LEVELS: Final = ("barrier", "linearizable")
PROBE_PAUSE_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 5.0
PROBE_KEY: Final = "probe"


class _Epoch(msgspec.Struct, frozen=True):
    epoch: int
    state_id: str


class _Node(msgspec.Struct, frozen=True):
    epoch: int


async def watch(http: aiohttp.ClientSession, url: str, number: int, history: History) -> None:
    """Every epoch from the first on, over whatever happens to service and network; runs until cancelled."""
    last = 0
    limit = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    while True:
        headers = {"accept": "text/event-stream", "last-event-id": str(last)}
        try:
            async with http.get(
                f"{url}/v1/epochs", headers=headers, timeout=limit, read_bufsize=LONGEST_LINE_BYTES
            ) as answer:
                if answer.status == 200:
                    async for line in answer.content:
                        if not line.startswith(b"data:"):
                            continue
                        found = msgspec.json.decode(line[5:].strip(), type=_Epoch)
                        now, last = history.now(), found.epoch
                        history.add(
                            WatchedEpoch(
                                began=now,
                                ended=now,
                                watch=number,
                                epoch=found.epoch,
                                state_id=found.state_id,
                            )
                        )
        except (aiohttp.ClientError, TimeoutError, ValueError):
            pass
        await asyncio.sleep(RECONNECT_S)


async def read_states(
    http: aiohttp.ClientSession, name: str, url: str, history: History, seed: int
) -> None:
    """Reads of the state through one metadata-log at either level; runs until cancelled."""
    chance = random.Random(f"{seed} {name}")
    limit = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    while True:
        await asyncio.sleep(chance.expovariate(1 / READ_PAUSE_S))
        level, began, found, why = chance.choice(READ_LEVELS), history.now(), _Epoch(0, ""), ""
        try:
            async with http.get(
                f"{url}/v1/state", params={"level": level}, timeout=limit
            ) as answer:
                body = await answer.read()
                if answer.status == 200:
                    found = msgspec.json.decode(body, type=_Epoch)
                else:
                    why = f"{answer.status} {body.decode(errors='replace')}"
        except (aiohttp.ClientError, TimeoutError) as error:
            why = repr(error)
        history.add(
            StateRead(
                began=began,
                ended=history.now(),
                through=name,
                level=level,
                answered=not why,
                epoch=found.epoch,
                state_id=found.state_id,
                answer=why,
            )
        )


async def probe(
    http: aiohttp.ClientSession,
    members: Members,
    image: Callable[[], Image],
    history: History,
    seed: int,
) -> None:
    """Replica writes with a version that is fenced out; runs until cancelled."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.expovariate(1 / PROBE_PAUSE_S))
        version = image().topology.fence_version - 1
        nodes = members()
        if version < 1 or not nodes:
            continue
        name = chance.choice(sorted(nodes))
        began = history.now()
        try:
            epoch = await _epoch_of(http, nodes[name])
            keyspace = image().schema.named(KEYSPACE)
            data_id = "" if keyspace is None else keyspace.data_id
            write = probe_write(data_id, name, PROBE_KEY.encode(), epoch, version)
            code = await send_probe(http, name, nodes[name], write, PROBE_TIMEOUT_S)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            continue
        history.add(
            Probe(
                began=began,
                ended=history.now(),
                node=name,
                epoch=epoch,
                version=version,
                code=code,
            )
        )


async def _epoch_of(http: aiohttp.ClientSession, address: str) -> int:
    limit = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    async with http.get(f"{address}/v1/node", timeout=limit) as answer:
        answer.raise_for_status()
        return msgspec.json.decode(await answer.read(), type=_Node).epoch
