"""``stele ring``: ranges and who reads and writes them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from stele.cli.errors import UsageError
from stele.cli.options import Read, Where
from stele.cli.output import console, joined, percent, print_value_as_json, table
from stele.cli.reading import Reading
from stele.domain.ring.ownership import tokens_in
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.tokens import RING_SIZE
from stele.domain.schema.facts import Keyspace
from stele.runtime.answers.metadata_log import PlacementsPage

PAGE = 1000


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
        keyspace: Only the placement of this keyspace; of a table with tablets, see `stele tablet list`.
        limit: Most ranges that are shown; 0 shows all.
    """
    with where.client() as client:
        reading = read.of(client)
        keyspaces = reading.keyspaces()
        chosen = _chosen(keyspaces, keyspace, reading.epoch)
        found = {name: shown_rows(reading, limit, placement=name) for name in chosen}
    if read.as_json:
        placements = {name: rows for name, (rows, _) in found.items()}
        print_value_as_json(
            {"epoch": reading.epoch, "state_id": reading.state_id, "placements": placements}
        )
        return
    for name, (rows, ranges) in found.items():
        _print(f"placement {name} at epoch {reading.epoch}", rows)
        if len(rows) < ranges:
            console().print(
                f"{ranges - len(rows)} more ranges: --limit 0 shows all.", soft_wrap=True
            )
    if not found:
        console().print("No placements: create a keyspace with `stele keyspace create`.")


def replicas(row: RangeReplicas) -> Text:
    """``n1 n2 n3 +n4``: + is written only, - is read only."""
    stable = [node for node in row.reads if node in row.writes]
    coming = [f"+{node}" for node in row.writes if node not in row.reads]
    going = [f"-{node}" for node in row.reads if node not in row.writes]
    return Text.assemble(
        joined(stable), (joined(["", *coming]), "green"), (joined(["", *going]), "yellow")
    )


def _print(title: str, rows: list[RangeReplicas]) -> None:
    numbers = ("start (exclusive)", "end (inclusive)", "share", "version")
    shown = table(title, *numbers, "replicas", right=numbers)
    for row in rows:
        share = percent(tokens_in(row), RING_SIZE)
        shown.add_row(str(row.start), str(row.end), share, str(row.version), replicas(row))
    console().print(shown)


def shown_rows(reading: Reading, limit: int, **which: str) -> tuple[list[RangeReplicas], int]:
    """The rows that are shown, 0: all, and how many there are; of ``placement=NAME`` or ``keyspace=NAME``."""
    size = min(limit or PAGE, PAGE)
    pages = reading.pages("/v1/placements", PlacementsPage, limit=size, **which)
    first = next(pages)
    rest = (row for page in pages for row in page.rows)
    missing = max(0, limit - len(first.rows)) if limit else None
    return [*first.rows, *islice(rest, missing)], first.ranges


def _chosen(keyspaces: list[Keyspace], name: str | None, epoch: int) -> list[str]:
    if name is None:
        return sorted({keyspace.placement for keyspace in keyspaces if not keyspace.tablets})
    for known in keyspaces:
        if known.name == name and not known.tablets:
            return [known.placement]
    names = ", ".join(k.name for k in keyspaces if not k.tablets) or "none"
    raise UsageError(
        f"There is no keyspace '{name}' on the ring at epoch {epoch}.", f"Known: {names}."
    )
