"""``stele plan --file``: the balancer's moves for a cluster that a file describes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stele.cli.errors import Exit, UsageError
from stele.cli.output import console, print_value_as_json, size, table
from stele.domain.balance.checks import BadCluster, read_cluster
from stele.domain.balance.offline import OfflinePlan, plan_offline

SHOWN: Final = 20
"""Moves in the table for people; JSON has them all."""


def show_balance(file: Path, *, as_json: bool) -> int:
    """Print the plan. Exit status 1 when it does not come to rest or something cannot be moved.

    Raises UsageError for a file that cannot be read or makes no sense.
    """
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}.") from None
    try:
        plan = plan_offline(read_cluster(raw))
    except BadCluster as error:
        raise UsageError(f"{file}: {error}.", "docs/balancer.md says what it holds.") from None
    if as_json:
        print_value_as_json(plan)
    else:
        print_plan(plan)
    return exit_of(plan)


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
