"""Sizes of the data of nodes. They are in no topic, so the nodes are asked."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.membership.model import Node
from stele.runtime.answers.node import NodeView
from stele.runtime.transport import FAILURES, HttpTransport, Transport, answer_of

TIMEOUT_S: Final = 2.0
"""Seconds. An estimate is worth no longer wait; the size of a silent node is unknown."""


async def held_bytes(nodes: Iterable[Node]) -> dict[str, int]:
    """Return bytes by node, of nodes that answer in time with the expected id and host id."""
    http = HttpTransport()
    try:
        found = await asyncio.gather(*(_ask(http, node) for node in nodes))
    finally:
        await http.close()
    return {view.node_id: view.bytes for view in found if view is not None}


async def _ask(http: Transport, node: Node) -> NodeView | None:
    try:
        answer = await answer_of(http, f"{node.address}/v1/node", TIMEOUT_S)
        view = msgspec.json.decode(answer.body, type=NodeView)
    except FAILURES:
        return None
    return view if (view.node_id, view.host_id) == (node.node_id, node.host_id) else None
