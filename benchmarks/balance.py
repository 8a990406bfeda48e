"""What the planner costs and how good its plans are: `python -m benchmarks.balance`. One thread, no broker.

Each cluster is first brought to rest. Times are processor seconds of one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from stele.domain.balance.cluster import Node
from stele.domain.balance.moves import Move
from stele.domain.balance.plan import plan_round, plan_to_fixed_point
from stele.domain.balance.shares import Ints, Reals
from stele.domain.balance.state import State

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


def main() -> None:
    console = Console(width=120)
    columns = ("nodes", "tablets", "sizes", "plan s", "goal", "moved / bound", "goal")
    added = Table(
        *columns, "max / mean", "goal", "second pass", title="nodes added, to rest", box=MARKDOWN
    )
    for nodes, more, tablets, goal_s in ADDED:
        for sizes, (_, most) in SIZES.items():
            seconds, over, high, again = add_nodes(nodes, more, tablets, sizes)
            added.add_row(
                *(f"{nodes} + {more}", f"{tablets:,}", sizes, f"{seconds:.2f}", f"{goal_s:g}"),
                *(f"{over:.4f}", f"{MOST_OVER_BOUND}", f"{high:.4f}", f"{most}", f"{again} moves"),
            )
    console.print(added)
    title = f"{LARGE[2]:,} tablets, {LARGE[0]} nodes"
    large = Table("what", "sizes", "s", "goal", "moves", title=title, box=MARKDOWN)
    for sizes in SIZES:
        for what, seconds, goal_s, moves in one_round(sizes):
            large.add_row(what, sizes, f"{seconds:.3f}", f"{goal_s:g}", str(moves))
    console.print(large)


def add_nodes(nodes: int, more: int, tablets: int, sizes: str) -> tuple[float, float, float, int]:
    """Seconds of the plan, bytes moved over the bound, max over mean, and moves of a second pass."""
    state, names = at_rest(nodes, tablets, TABLES, sizes)
    extend(state, more)
    before = held(state)
    mean = before.sum() / len(before)
    bound = np.maximum(0, before - mean).sum()
    began_s = time.process_time()
    plan = plan_to_fixed_point(state, names)
    seconds = time.process_time() - began_s
    moved = sum(state.size[move.unit] for move in plan.moves if move.source[0] != move.target[0])
    again = plan_to_fixed_point(state, names).moves
    return seconds, moved / bound, held(state).max() / mean, len(again)


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
    extend(state, more)
    found.append((f"round, {more} nodes added", *timed(state, names), ROUND_S))
    return [(what, seconds, goal_s, len(moves)) for what, seconds, moves, goal_s in found]


def timed(state: State, names: list[str]) -> tuple[float, list[Move]]:
    began_s = time.process_time()
    moves = plan_round(state, names)
    return time.process_time() - began_s, moves


def at_rest(nodes: int, tablets: int, tables: int, sizes: str) -> tuple[State, list[str]]:
    state, names = built(nodes, tablets, tables, sizes)
    plan_to_fixed_point(state, names)
    return state, names


def built(nodes: int, tablets: int, tables: int, sizes: str) -> tuple[State, list[str]]:
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
    state = State([one(at) for at in range(nodes)], tables, table, size, node, shard)
    return state, [f"ks.t{at}" for at in range(tables)]


def dealt(node: Ints) -> Ints:
    """The shards of each node in turn."""
    found = np.empty(len(node), np.int64)
    for name in np.unique(node):
        here = np.flatnonzero(node == name)
        found[here] = np.arange(len(here)) % SHARDS
    return found


def one(at: int) -> Node:
    return Node(f"n{at}", "dc1", f"r{at % RACKS}", SHARDS, CAPACITY_BYTES)


def extend(state: State, more: int) -> None:
    first = len(state.nodes)
    for at in range(first, first + more):
        state.add_node(one(at))


def held(state: State) -> Reals:
    """Bytes on each node."""
    found = np.zeros(len(state.nodes))
    np.add.at(found, state.node, state.size[:, None])
    return found


if __name__ == "__main__":
    main()
