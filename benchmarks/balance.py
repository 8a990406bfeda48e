"""Cost of the planner, and quality of its plans: `python -m benchmarks.balance`. One thread, no broker.

Each cluster is first brought to rest. Times are processor seconds of one run. With `--peer PYTHON` Meta's
Rebalancer plans from the same clusters in the same run, by that interpreter (``benchmarks.balance_peer``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from stele.domain.planner.cluster import ClusterNode
from stele.domain.planner.moves import ReplicaMove
from stele.domain.planner.plan import plan_round, plan_to_fixed_point
from stele.domain.planner.shares import Ints, Reals
from stele.domain.planner.state import BalanceColumns

SHARDS: Final = 8
RACKS: Final = 3
TABLES: Final = 20
MEAN_BYTES: Final = 5_000_000_000
CAPACITY_BYTES: Final = 10_000_000_000_000
ADDED: Final = ((30, 3, 10_000, 1.0), (99, 9, 30_000, 3.0), (300, 30, 100_000, 15.0))
"""Nodes, nodes added, tablets, and how many seconds the plan may take."""
MOST_OVER_BOUND: Final = 1.02
SIZES: Final[dict[str, tuple[Callable[[np.random.Generator, int], Reals], float]]] = {
    "uniform": (lambda _, count: np.full(count, 1.0), 1.01),
    "lognormal": (lambda draw, count: draw.lognormal(0, 1, count), 1.05),
}
"""Sizes in parts of the mean, and how large max/mean may be."""
LARGE: Final = (999, 99, 1_000_000, 100)
"""Nodes, nodes added, tablets, tables."""
ROUND_S: Final = 2.0
REPLAN_S: Final = 0.05


PEER: Final = Path(__file__).parent / "balance_peer.py"
PEER_LIMIT_S: Final = 600


class Made(NamedTuple):
    """A plan: its seconds, bytes moved over the bound, max over mean, and moves of a second pass."""

    seconds: float
    over: float
    high: float
    again: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="", help="an interpreter that has Meta's Rebalancer")
    peer = parser.parse_args().peer
    console = Console(width=120)
    columns = ("nodes", "tablets", "sizes", "plan s", "goal", "moved / bound", "goal")
    added = Table(
        *columns, "max / mean", "goal", "second pass", title="nodes added, to rest", box=MARKDOWN
    )
    beside = Table(
        *(
            "nodes",
            "tablets",
            "sizes",
            "s",
            "peer s",
            "moved",
            "peer moved",
            "max / mean",
            "peer's",
        ),
        title="beside Meta's Rebalancer",
        box=MARKDOWN,
    )
    for nodes, more, tablets, goal_s in ADDED:
        for sizes, (_, most) in SIZES.items():
            made = add_nodes(nodes, more, tablets, sizes)
            plan = (f"{nodes} + {more}", f"{tablets:,}", sizes, f"{made.seconds:.2f}")
            added.add_row(
                *(*plan, f"{goal_s:g}", f"{made.over:.4f}", f"{MOST_OVER_BOUND}"),
                *(f"{made.high:.4f}", f"{most}", f"{made.again} moves"),
            )
            if peer:
                other = of_peer(peer, nodes, more, tablets, sizes)
                beside.add_row(
                    *(*plan, f"{other.seconds:.2f}", f"{made.over:.4f}", f"{other.over:.4f}"),
                    *(f"{made.high:.4f}", f"{other.high:.4f}"),
                )
    console.print(added)
    if peer:
        console.print(beside)
    title = f"{LARGE[2]:,} tablets, {LARGE[0]} nodes"
    large = Table("what", "sizes", "s", "goal", "moves", title=title, box=MARKDOWN)
    for sizes in SIZES:
        for what, seconds, goal_s, moves in one_round(sizes):
            large.add_row(what, sizes, f"{seconds:.3f}", f"{goal_s:g}", str(moves))
    console.print(large)


def add_nodes(nodes: int, more: int, tablets: int, sizes: str) -> Made:
    state, names = at_rest(nodes, tablets, TABLES, sizes)
    state = extended(state, more)
    least = bound(state)
    began_s = time.process_time()
    plan = plan_to_fixed_point(state, names)
    seconds = time.process_time() - began_s
    moved = sum(state.size[move.unit] for move in plan.moves if move.source[0] != move.target[0])
    again = plan_to_fixed_point(state, names).moves
    return Made(seconds, moved / least, high(state), len(again))


def of_peer(python: str, nodes: int, more: int, tablets: int, sizes: str) -> Made:
    """The same by the peer. It must hold the rule that it was given."""
    state, _ = at_rest(nodes, tablets, TABLES, sizes)
    state = extended(state, more)
    replicas = [
        (unit, f"n{node}", size)
        for unit, (row, size) in enumerate(zip(state.node.tolist(), state.size, strict=True))
        for node in row
    ]
    racks = {node.id: node.rack for node in state.nodes}
    job = json.dumps({"racks": racks, "replicas": replicas, "limit_s": PEER_LIMIT_S})
    done = subprocess.run(
        [python, str(PEER)],
        input=job.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=2 * PEER_LIMIT_S,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    after = np.array([int(node[1:]) for node in found["nodes"]], np.int32).reshape(state.node.shape)
    in_racks = np.sort(state.rack[after], axis=1)
    assert (in_racks[:, 1:] != in_racks[:, :-1]).all(), "two replicas of a tablet in one rack"
    moved, least = state.size @ (after != state.node).sum(axis=1), bound(state)
    state.node[:] = after
    return Made(found["seconds"], moved / least, high(state))


def bound(state: BalanceColumns) -> float:
    """Bytes above the mean of the nodes: so many have to move."""
    before = held(state)
    return float(np.maximum(0, before - before.mean()).sum())


def high(state: BalanceColumns) -> float:
    found = held(state)
    return float(found.max() / found.mean())


def one_round(sizes: str) -> list[tuple[str, float, float, int]]:
    """Rounds of a large cluster: what, seconds, the goal, moves."""
    nodes, more, tablets, tables = LARGE
    state, names = built(nodes, tablets, tables, sizes)
    found = [("round, as made", *timed(state, names), ROUND_S)]
    plan_to_fixed_point(state, names)
    unit = tablets // 2
    target = next(
        node
        for node in np.flatnonzero(state.rack == state.rack[state.node[unit, 0]]).tolist()
        if state.fits(unit * state.width, node)
    )
    state.move(unit * state.width, target, 0)
    found.append(("again after one move", *timed(state, names), REPLAN_S))
    state = extended(state, more)
    found.append((f"round, {more} nodes added", *timed(state, names), ROUND_S))
    return [(what, seconds, goal_s, len(moves)) for what, seconds, moves, goal_s in found]


def timed(state: BalanceColumns, names: list[str]) -> tuple[float, list[ReplicaMove]]:
    began_s = time.process_time()
    moves = plan_round(state, names)
    return time.process_time() - began_s, moves


def at_rest(nodes: int, tablets: int, tables: int, sizes: str) -> tuple[BalanceColumns, list[str]]:
    state, names = built(nodes, tablets, tables, sizes)
    plan_to_fixed_point(state, names)
    return state, names


def built(nodes: int, tablets: int, tables: int, sizes: str) -> tuple[BalanceColumns, list[str]]:
    """Tables of about one size, dealt out to the nodes of each rack in random order."""
    draw = np.random.default_rng(7)
    table = np.sort(draw.integers(0, tables, tablets))
    size = np.rint(MEAN_BYTES * SIZES[sizes][0](draw, tablets))
    node, shard = np.empty((tablets, RACKS), np.int64), np.empty((tablets, RACKS), np.int64)
    for rack in range(RACKS):
        on = np.arange(rack, nodes, RACKS)
        rounds = -(-tablets // len(on))
        node[:, rack] = np.concatenate([draw.permutation(on) for _ in range(rounds)])[:tablets]
        shard[:, rack] = dealt(node[:, rack])
    state = BalanceColumns([one(at) for at in range(nodes)], tables, table, size, node, shard)
    return state, [f"ks.t{at}" for at in range(tables)]


def dealt(node: Ints) -> Ints:
    """The shards of each node in turn."""
    found = np.empty(len(node), np.int64)
    for name in np.unique(node):
        here = np.flatnonzero(node == name)
        found[here] = np.arange(len(here)) % SHARDS
    return found


def one(at: int) -> ClusterNode:
    return ClusterNode(f"n{at}", "dc1", f"r{at % RACKS}", SHARDS, CAPACITY_BYTES)


def extended(state: BalanceColumns, more: int) -> BalanceColumns:
    nodes = [*state.nodes, *map(one, range(len(state.nodes), len(state.nodes) + more))]
    table, node, shard = (c.astype(np.int64) for c in (state.table, state.node, state.shard))
    return BalanceColumns(nodes, state.tables, table, state.size, node, shard)


def held(state: BalanceColumns) -> Reals:
    """Bytes on each node."""
    found = np.zeros(len(state.nodes))
    np.add.at(found, state.node, state.size[:, None])
    return found


if __name__ == "__main__":
    main()
