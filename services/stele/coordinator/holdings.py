"""How much data nodes hold, which no log or flow says: they are asked."""

import asyncio
from collections.abc import Iterable
from typing import Final

import aiohttp
import msgspec

from stele.domain.membership.facts import Node
from stele.runtime.answers.node import NodeView
from stele.runtime.http_client import connector

TIMEOUT_S: Final = 2.0
"""An estimate is not worth more; who does not answer is unknown."""


async def held_bytes(nodes: Iterable[Node]) -> dict[str, int]:
    """Bytes by node, of those that answer in time and are who they should be."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector(), timeout=timeout) as http:
        found = await asyncio.gather(*(_ask(http, node) for node in nodes))
    return {view.node_id: view.bytes for view in found if view is not None}


async def _ask(http: aiohttp.ClientSession, node: Node) -> NodeView | None:
    try:
        async with http.get(f"{node.address}/v1/node") as answer:
            view = msgspec.json.decode(await answer.read(), type=NodeView)
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return view if (view.node_id, view.host_id) == (node.node_id, node.host_id) else None
