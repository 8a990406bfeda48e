"""``stele tablet list|move``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from stele.cli.commands.ring import replicas, shown_rows
from stele.cli.commands.topology import submit_and_follow
from stele.cli.options import Change, Force, Read, Where
from stele.cli.output import console, print_value_as_json
from stele.cli.output import table as table_of
from stele.domain.topology.operations.commands import MoveTablets, TabletMove

app = App(name="tablet", help="Tablets: the parts of a table, each with replicas of its own.")


@app.command(name="list")
def list_tablets(
    table: str,
    *,
    limit: int = 64,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The tablets of a table: range and replicas.

    Replicas that are written but not yet read are marked with +, those read but leaving with -.

    Args:
        table: KEYSPACE.TABLE.
        limit: Most tablets that are shown; 0 shows all.
    """
    with where.client() as client:
        reading = read.of(client)
        rows, tablets = shown_rows(reading, limit, keyspace=table)
    if read.as_json:
        print_value_as_json(
            {"epoch": reading.epoch, "state_id": reading.state_id, "table": table, "tablets": rows}
        )
        return
    numbers = ("tablet", "start (exclusive)", "end (inclusive)", "version")
    shown = table_of(
        f"{tablets} tablets of {table} at epoch {reading.epoch}",
        *numbers,
        "replicas",
        right=numbers,
    )
    for number, row in enumerate(rows):
        shown.add_row(str(number), str(row.start), str(row.end), str(row.version), replicas(row))
    console().print(shown)
    if len(rows) < tablets:
        console().print(f"{tablets - len(rows)} more tablets: --limit 0 shows all.")


@app.command
def move(
    table: str,
    tablet: int,
    *,
    from_node: Annotated[str, Parameter(name="--from")],
    to_node: Annotated[str, Parameter(name="--to")],
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Move a replica of a tablet to another node, while it is read and written.

    The coordinator carries it out; the command follows the request until it is done.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
        from_node: The node that has a replica.
        to_node: The node that gets it.
        force: Give up what only nodes have that are declared dead.
    """
    asked = TabletMove(
        table=table, tablet=tablet, from_node=from_node, to_node=to_node, force=force
    )
    with where.client() as client:
        return submit_and_follow(client, change, MoveTablets((asked,)))
