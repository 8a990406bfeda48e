"""How even nodes hold the replicas of a growing cluster: `python -m benchmarks.ownership`.

Pure and the same on each machine, 20 s of processor time. Nodes join one at a time; each figure is the largest
share over the mean. Beside it, where racks are of unlike size, stands the lowest that any tokens could reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from stele.domain.ring.allocation import allocate_tokens, fair_shares
from stele.domain.ring.ranges import held_tokens
from stele.domain.ring.strategy import NodeLocation, placement_of

SIZES = (3, 4, 5, 6, 10, 20, 50, 100)
DC = "dc1"
EVEN = 1.005
"""A lowest possible figure below this is not shown."""

Tokens = dict[int, str]
Nodes = dict[str, NodeLocation]
Counts = dict[str, int]


class Cell(msgspec.Struct, frozen=True):
    """A way to grow: in which rack, and with how many tokens, the node of each number joins."""

    what: str
    rack: Callable[[int], int]
    num_tokens: Callable[[int], int] = lambda _: 16
    sizes: Sequence[int] = SIZES


CELLS = (
    Cell("3 racks", lambda node: node % 3),
    Cell("1 rack", lambda _: 0),
    Cell("2 racks", lambda node: node % 2),
    Cell("racks of 3 : 3 : 1", lambda node: (0, 1, 2, 0, 1, 0, 1)[node % 7], sizes=SIZES[:-1]),
    Cell("5 racks", lambda node: node % 5, sizes=SIZES[:-1]),
    Cell("3 racks, 4 tokens", lambda node: node % 3, lambda _: 4, SIZES[:-1]),
    Cell("3 racks, 8 and 16", lambda node: node % 3, lambda node: 8 << (node // 3 % 2), SIZES[:-1]),
    Cell("3 racks, 256 tokens", lambda node: node % 3, lambda _: 256, SIZES[:5]),
)


def main() -> None:
    began_s = time.process_time()
    columns = ("what", "rf", *map(str, SIZES), "worst of all sizes")
    table = Table(*columns, title="largest share over the mean (lowest possible), by nodes")
    for cell in CELLS:
        for row in rows(cell):
            table.add_row(*row)
    Console(width=130).print(table)
    Console().print(f"{time.process_time() - began_s:.0f} s of processor time")


def rows(cell: Cell) -> Iterator[tuple[str, ...]]:
    """One for each factor. The worst is over the lowest possible of its size."""
    shown: dict[int, list[str]] = {1: [], 2: [], 3: []}
    worst = dict.fromkeys(shown, 0.0)
    for size, (tokens, nodes, counts) in enumerate(grow(cell), start=1):
        for rf, figures in shown.items():
            if size < SIZES[0]:
                continue
            reached, lowest = unevenness(tokens, nodes, counts, rf)
            worst[rf] = max(worst[rf], reached / lowest)
            if size in SIZES:
                figures.append(f"{reached:.2f}" + (f" ({lowest:.2f})" if lowest > EVEN else ""))
    for rf, figures in shown.items():
        padding = [""] * (len(SIZES) - len(figures))
        yield cell.what, str(rf), *figures, *padding, f"{worst[rf]:.2f}"


def grow(cell: Cell) -> Iterator[tuple[Tokens, Nodes, Counts]]:
    tokens, nodes, counts = Tokens(), Nodes(), Counts()
    for number in range(cell.sizes[-1]):
        name, place = f"n{number}", NodeLocation(DC, f"r{cell.rack(number)}")
        count = cell.num_tokens(number)
        chosen = allocate_tokens(tokens, nodes, name, place, count, f"bench/{name}".encode())
        tokens.update(dict.fromkeys(chosen, name))
        nodes[name], counts[name] = place, count
        yield tokens, nodes, counts


def unevenness(tokens: Tokens, nodes: Nodes, counts: Counts, rf: int) -> tuple[float, float]:
    """Largest share for a token over the mean share for one: as it is, and the lowest possible."""
    held = held_tokens(placement_of(tokens, nodes, {DC: rf}).rows)
    weights = np.array([counts[name] for name in nodes])
    loads = np.array([float(held[name]) for name in nodes])
    racks = sorted({place.rack for place in nodes.values()})
    places = np.array([racks.index(place.rack) for place in nodes.values()], np.int32)
    fair = fair_shares(weights, places, rf)
    reached, lowest = (
        float((shares / weights).max() * weights.sum() / shares.sum()) for shares in (loads, fair)
    )
    return reached, lowest


if __name__ == "__main__":
    main()
