"""What a look-up costs a client: `python -m benchmarks.router`. No broker; one thread, processor time.

Three placements: one range; 1,000 nodes of 256 tokens; a table of 2^18 tablets. Each key is another one, and
its hash is part of the look-up. The first figure of each run is the hash alone, to compare with.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from immutables import Map
from rich.console import Console
from rich.table import Table

from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.domain.model.ring import RingImage
from stele.domain.model.schema import Keyspace, SchemaImage
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.tablets.maps import new_map
from stele.router import Router

LIMIT_US = 5.0
"""What a look-up may cost at most."""
KEYS = 50_000
RUNS = 5
NODES = 1_000
TOKENS = 256


def names() -> NodeNumbers:
    numbers = NodeNumbers()
    return numbers.with_nodes([f"n{number}" for number in range(NODES)])


def replicas(
    count: int, chance: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Three different nodes for each row."""
    first = chance.integers(0, NODES, count)
    return np.stack((first, (first + 1) % NODES, (first + 2) % NODES), axis=1).astype(np.int32)


def placements() -> dict[str, Placement]:
    chance, nodes = np.random.default_rng(7), names()
    count = NODES * TOKENS
    tokens = np.unique(chance.integers(MIN_TOKEN + 1, 2**63 - 1, count, np.int64))
    starts = np.concatenate(([MIN_TOKEN], tokens))
    return {
        "one range": Placement.at_rest(starts[:1], replicas(1, chance), nodes),
        "256,000 ranges": Placement.at_rest(starts, replicas(len(starts), chance), nodes),
        "262,144 tablets": new_map(replicas(1 << 18, chance), nodes),
    }


def router_of(placement: Placement) -> Router:
    keyspace = Keyspace(keyspace_id="k1", name="library", replication={"dc1": 3}, placement="p")
    router = Router()
    router.take(
        EMPTY_FOR_FOLLOWERS.__class__(
            epoch=1,
            ring=RingImage(placements=Map({"p": placement})),
            schema=SchemaImage(by_id=Map({"k1": keyspace}), ids=Map({"library": "k1"})),
            decided=None,
        )
    )
    return router


def microseconds(call: Callable[[bytes], object], keys: list[bytes]) -> float:
    """Of one call, in the best of several runs."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        for key in keys:
            call(key)
        best = min(best, time.process_time() - began)
    return best / len(keys) * 1e6


def measured() -> dict[str, float]:
    """What -> microseconds."""
    keys = [f"user-{number}".encode() for number in range(KEYS)]
    found = {"the hash of the key alone": microseconds(token_of, keys)}
    for what, placement in placements().items():
        router = router_of(placement)
        found[f"look-up, {what}"] = microseconds(lambda key: router.lookup("library", key), keys)  # noqa: B023
    return found


def main() -> int:
    found = measured()
    hashed = found["the hash of the key alone"]
    table = Table("what", "us", "times the hash")
    for what, cost in found.items():
        table.add_row(what, f"{cost:.2f}", f"{cost / hashed:.1f}")
    Console().print(table)
    return int(max(found.values()) > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
