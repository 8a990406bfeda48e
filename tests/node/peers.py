"""Nodes with a store and a replica each, which call each other without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stele.agent.judging import AgentState, Code, Routing
from stele.log.follower import LogFollower
from stele.node.cells import HybridClock
from stele.node.load import Rates
from stele.node.replica import LocalReplica
from stele.node.store import SqliteStore
from stele.node.streaming import Streamer
from stele.node.wire import Compare, Compared, Scan, Scanned
from tests.node.world import Sessions, World

NODES = ("n1", "n2", "n3")


def replica_of(
    node_id: str,
    follower: LogFollower,
    state: AgentState,
    store: SqliteStore,
    clock: HybridClock | None = None,
    rates: Rates | None = None,
    catch_up_limit_s: float = 2.0,
) -> LocalReplica:
    """Return a node's replica. By default its clock stands still."""
    return LocalReplica(
        node_id,
        follower,
        Routing(follower),
        state,
        store,
        clock or HybridClock(lambda: 1),
        rates or Rates(1.0),
        catch_up_limit_s,
    )


class Peers:
    """Nodes that stream from each other. Calls to those in ``down`` fail, and ``scans`` has the others."""

    def __init__(
        self, world: World, follower: LogFollower, folder: Path, nodes: Sequence[str] = NODES
    ) -> None:
        self.world, self.follower = world, follower
        self.sessions = Sessions(follower)
        self.stores = {name: SqliteStore(folder / f"{name}.sqlite") for name in nodes}
        self.replicas = {
            name: replica_of(name, follower, self.sessions, store)
            for name, store in self.stores.items()
        }
        self.down: set[str] = set()
        self.scans: list[tuple[str, Scan]] = []
        self.on_page: Callable[[str], None] = lambda node_id: None
        self.clock = HybridClock(lambda: 1)
        self.streamers = {
            name: Streamer(name, follower, self.sessions, store, self.clock, self)
            for name, store in self.stores.items()
        }

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned:
        assert address == f"http://{node_id}"
        self.scans.append((node_id, scan))
        if node_id in self.down:
            return Scanned(code=Code.UNREACHABLE, text="refused")
        found = await self.replicas[node_id].scan(scan)
        if scan.limit_bytes:
            self.on_page(node_id)
        return found

    async def digests(self, node_id: str, address: str, compare: Compare) -> Compared:
        if node_id in self.down:
            return Compared(code=Code.UNREACHABLE, text="refused")
        return await self.replicas[node_id].digests(compare)

    async def close(self) -> None:
        for store in self.stores.values():
            await store.close()
