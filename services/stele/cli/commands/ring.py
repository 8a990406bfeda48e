"""``stele ring``: ranges and who reads and writes them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from stele.cli.errors import UsageError
from stele.cli.models import PlacementRow, StateView
from stele.cli.options import Read, Where
from stele.cli.output import console, joined, percent, print_json, table

RING_SIZE = 1 << 64


def ring(
    keyspace: str | None = None,
    *,
    limit: Annotated[int, Parameter(name="--limit")] = 64,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The ring of each placement: range, share, replicas that are read and written.

    Replicas that are written but not yet read are marked with +, those read but leaving with -.

    Args:
        keyspace: Only the placement of this keyspace.
        limit: Most ranges that are shown; 0 shows all.
    """
    with where.client() as client:
        if read.as_json:
            print_json(read.state_json(client))
            return
        view = read.state(client)
    for name in _chosen(view, keyspace):
        rows = view.placements[name]
        found = table(
            f"placement {name} at epoch {view.epoch}, version {view.topology.version}",
            "start (exclusive)",
            "end (inclusive)",
            "share",
            "replicas",
            right=("start (exclusive)", "end (inclusive)", "share"),
        )
        shown = rows[:limit] if limit else rows
        for row in shown:
            share = percent((row.end - row.start) % RING_SIZE or RING_SIZE, RING_SIZE)
            found.add_row(str(row.start), str(row.end), share, replicas(row))
        console().print(found)
        if len(shown) < len(rows):
            console().print(
                f"{len(rows) - len(shown)} more ranges: --limit 0 shows all.", soft_wrap=True
            )
    if not view.placements:
        console().print("No placements: create a keyspace with `stele keyspace create`.")


def replicas(row: PlacementRow) -> Text:
    """``n1 n2 n3 +n4``: + is written only, - is read only."""
    stable = [node for node in row.reads if node in row.writes]
    coming = [f"+{node}" for node in row.writes if node not in row.reads]
    going = [f"-{node}" for node in row.reads if node not in row.writes]
    return Text.assemble(
        joined(stable), (joined(["", *coming]), "green"), (joined(["", *going]), "yellow")
    )


def _chosen(view: StateView, keyspace: str | None) -> list[str]:
    if keyspace is None:
        return sorted(view.placements)
    for known in view.keyspaces:
        if known.name == keyspace:
            return [known.placement]
    names = ", ".join(k.name for k in view.keyspaces) or "none"
    raise UsageError(
        f"There is no keyspace '{keyspace}' at epoch {view.epoch}.", f"Known: {names}."
    )
