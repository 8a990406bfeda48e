"""A plan of the balancer for people, and what it means for the exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stele.cli.errors import Exit
from stele.cli.output import console, size, table
from stele.domain.balance.planned import OfflinePlan

SHOWN: Final = 20
"""Moves in the table for people; JSON has them all."""


def print_plan(plan: OfflinePlan) -> None:
    """For people: the first moves, what cannot be moved, and how even it was and will be."""
    out = console()
    for part in _parts(plan):
        out.print(part, soft_wrap=isinstance(part, Text))


def exit_of(plan: OfflinePlan) -> Exit:
    """Not well when it does not come to rest, or something cannot be moved."""
    return Exit.OK if plan.converged and not plan.unmovable else Exit.FAILED


def _parts(plan: OfflinePlan) -> Iterator[RenderableType]:
    kinds = Counter(move.kind for move in plan.moves)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    yield Text(f"moves: {counts or 'none'}; nothing is done", style="bold")
    if plan.moves:
        yield _moves(plan)
    if len(plan.moves) > SHOWN:
        yield Text(f"and {len(plan.moves) - SHOWN} more: --json has them all", style="dim")
    for one in plan.unmovable:
        what = f"{one.keyspace}.{one.table} tablet {one.tablet} cannot leave {one.node}"
        yield Text(f"{what}: {one.reason}", style="red")
    yield _nodes(plan)
    yield Text(
        f"to move between nodes: {size(plan.moved_bytes)}, at least"
        f" {size(plan.lower_bound_bytes)} for such evenness; within nodes:"
        f" {size(plan.moved_within_nodes_bytes)}"
    )
    if not plan.converged:
        yield Text("it does not come to rest: please report this file", style="red")


def _moves(plan: OfflinePlan) -> Table:
    shown = table("moves", "tablet", "from", "to", "kind", "because")
    for move in plan.moves[:SHOWN]:
        shown.add_row(
            f"{move.keyspace}.{move.table} {move.tablet}",
            f"{move.source[0]}/{move.source[1]}",
            f"{move.target[0]}/{move.target[1]}",
            move.kind,
            move.reason,
        )
    return shown


def _nodes(plan: OfflinePlan) -> Table:
    by_rate = any(node.rate for node in plan.before.nodes)
    rates = ("operations/s", "will serve") if by_rate else ()
    numbers = ("replicas", "after", "of its share", "will be", *rates)
    shown = table("nodes", "node", *numbers, right=numbers)
    for pair in zip(plan.before.nodes, plan.after.nodes, strict=True):
        before, after = pair
        cells = [str(before.replicas), str(after.replicas), *(_share(n.of_share) for n in pair)]
        cells += [f"{node.rate:,.0f}" for node in pair] if by_rate else []
        shown.add_row(before.id, *cells)
    return shown


def _share(of_share: float | None) -> str:
    return "" if of_share is None else f"{of_share:.1%}"
