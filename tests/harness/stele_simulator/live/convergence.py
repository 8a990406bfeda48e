"""After the faults: when is the system at rest, and where does every process stand then?"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp
import msgspec

from stele.domain.image import Image
from stele.domain.names import OWNS_TOKENS, UNFINISHED
from stele.log.follower import LogFollower
from stele.runtime.answers.common import Position
from stele_simulator.live.clients import DataClients, all_keys
from stele_simulator.live.command_sender import POLL_S, holds_within
from stele_simulator.live.faults import Role
from stele_simulator.live.history import History, WatchedEpoch
from stele_simulator.live.replica_copies import record_copies
from stele_simulator.live.site import Site

REST_LIMIT_S: Final = 180.0
"""After the last fault in which the system must come to rest (I10): a coordinator's patience with work
without progress is 60 s, with dead nodes 30 s."""
CALL_TIMEOUT_S: Final = 5.0


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: where each process stood (epoch and hash) when all had had time to come to ``epoch``."""

    epoch: int
    took_s: float
    positions: dict[str, tuple[int, str]]
    silent: list[str]
    """Keys without an answer, and the nodes that were asked."""


async def converge(
    site: Site,
    history: History,
    http: aiohttp.ClientSession,
    follower: LogFollower,
    clients: DataClients,
) -> Rest:
    """Wait for rest as long as it may take, then read every key through every member."""
    began = history.now()
    await holds_within(lambda: _is_at_rest(follower.image), REST_LIMIT_S)
    took_s = history.now() - began
    history.event(f"at rest after {took_s:.1f} s; every key is read from its replicas")
    await record_copies(http, follower.image, history, all_keys())
    history.event("every key is read through every member")
    silent = await clients.read_back()
    image = await follower.wait_for_end()
    await holds_within(lambda: _least_told(history) >= image.epoch, REST_LIMIT_S)
    positions = await _positions(site, http, image)
    return Rest(epoch=image.epoch, took_s=took_s, positions=positions, silent=silent)


def members_of(image: Image) -> dict[str, str]:
    """Addresses by node id of those that serve data."""
    nodes = image.membership.nodes.values()
    return {node.node_id: node.address for node in nodes if node.state in OWNS_TOKENS}


def _is_at_rest(image: Image) -> bool:
    unfinished = any(r.status in UNFINISHED for r in image.requests.requests.values())
    return not image.topology.transitions and not unfinished and image.topology.settled()


def _least_told(history: History) -> int:
    """Return the newest epoch that every watch has received."""
    last = {told.watch: told.epoch for told in history.of(WatchedEpoch)}
    return min(last.values(), default=0)


async def _positions(
    site: Site, http: aiohttp.ClientSession, image: Image
) -> dict[str, tuple[int, str]]:
    """Return the epochs of all processes except nodes that have left; -1 for no answer."""
    members = members_of(image)
    nodes = set(site.names(Role.NODE))
    names = [name for name in site.names(Role.EVERYBODY) if name not in nodes or name in members]
    loop = asyncio.get_running_loop()
    end_s = loop.time() + REST_LIMIT_S
    while True:
        found = {name: await _position(http, site.url(name)) for name in names}
        if all(epoch >= image.epoch for epoch, _ in found.values()) or loop.time() > end_s:
            return found
        await asyncio.sleep(POLL_S)


async def _position(http: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    try:
        async with http.get(f"{url}/v1/position", timeout=limit) as answer:
            position = msgspec.json.decode(await answer.read(), type=Position)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        return -1, repr(error)
    return position.epoch, position.hash
