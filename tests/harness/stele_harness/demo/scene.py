"""The state that the steps of the demo share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from stele.domain.names import OWNS_TOKENS, NodeState
from stele_harness.demo.load import Load
from stele_harness.demo.rows import RowLoad
from stele_harness.demo.site import Site
from stele_harness.demo.timeline import Timeline

KEYSPACE = "library"
REPLICATION = {"dc1": 3}


@dataclass(slots=True)
class Scene:
    """A run of the demo: the stack, the voice, the load, and what was learnt on the way."""

    site: Site
    timeline: Timeline
    directory: Path
    load: Load
    digests: dict[str, str] = field(default_factory=dict)
    """Key of each loaded file -> SHA-256 of its content, hex."""

    rows: RowLoad | None = None
    """The load of the table with columns, after its step."""

    background: list[asyncio.Task[None]] = field(default_factory=list)
    """Tasks that run beside the steps until the load stops."""

    async def members(self) -> dict[str, str]:
        """Node id -> address of the nodes that have tokens in the ring."""
        nodes = await self.site.nodes()
        return {n.node_id: n.address for n in nodes if n.state in OWNS_TOKENS}

    async def node_is(self, node_id: str, state: NodeState) -> bool:
        node = await self.site.node(node_id)
        return node is not None and node.state is state
