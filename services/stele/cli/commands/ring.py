"""``stele ring``: ranges and the replicas that serve their reads and writes."""

from __future__ import annotations

import shlex
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from stele.cli.errors import CliError, UsageError
from stele.cli.options import FROM_ZERO, Format, ReadPoint, Where
from stele.cli.output import joined, percent, table
from stele.cli.reading import StateReading, first_rows
from stele.domain.model.schema import Keyspace
from stele.domain.ring.ranges import RING_SIZE, RangeReplicas, distance
from stele.runtime.answers.metadata_log import PlacementsPage

PAGE = 1000


def ring(
    keyspace: str | None = None,
    /,
    *,
    key: Annotated[str | None, Parameter(name="--key")] = None,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 64,
    read: ReadPoint = ReadPoint(),
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the ranges of each placement: share, and the replicas that serve reads and writes.

    Marks: `+` for replicas that are written and not yet read, `-` for those that are read and leave.

    Args:
        keyspace: Only the placement of this keyspace. For a table with tablets, use `stele tablet list`.
        key: Only the range of this key; of a table with columns, of this partition key, if it is one text.
        limit: Most ranges that are shown; 0 shows all.
    """
    if key is not None and keyspace is None:
        raise UsageError("--key is a key of one keyspace.", "stele ring KEYSPACE --key KEY")
    with where.client() as client:
        reading = read.of(client)
        keyspaces = reading.keyspaces()
        chosen = _chosen(keyspaces, keyspace, reading.epoch, key)
        found = {name: shown_rows(reading, limit, key, placement=name) for name in chosen}
    if form.is_document:
        placements = {name: shown.rows for name, shown in found.items()}
        form.print_document(reading.document(placements=placements))
        return
    for name, (rows, ranges, _, _) in found.items():
        if key is not None:
            form.note(f"{key_text(key)} is in this range")
        form.print_table(_table(f"placement {name} at epoch {reading.epoch}", rows))
        if key is None:
            form.note_more(ranges - len(rows), "more range")
    if not found:
        form.note("No placements: create a keyspace with `stele keyspace create`.")


def replicas(row: RangeReplicas) -> Text:
    """Return ``n1 n2 n3 +n4``: + is written only, - is read only. With shards: ``n1:0 n2:3+1``."""
    stable = [row.place(node) for node in row.reads if node in row.writes]
    coming = [f"+{row.place(node)}" for node in row.writes if node not in row.reads]
    going = [f"-{node}" for node in row.reads if node not in row.writes]
    return Text.assemble(
        joined(stable), (joined(["", *coming]), "green"), (joined(["", *going]), "yellow")
    )


def _table(title: str, rows: list[RangeReplicas]) -> Table:
    numbers = ("start (exclusive)", "end (inclusive)", "share", "version")
    shown = table(title, *numbers, "replicas", right=numbers)
    for row in rows:
        share = percent(distance(row.start, row.end), RING_SIZE)
        shown.add_row(str(row.start), str(row.end), share, str(row.version), replicas(row))
    return shown


class ShownRows(NamedTuple):
    """The rows shown, the number of all rows, the placement, and the keyspaces that use it."""

    rows: list[RangeReplicas]
    ranges: int
    placement: str
    users: tuple[str, ...]


def shown_rows(
    reading: StateReading, limit: int, key: str | None = None, **which: str
) -> ShownRows:
    """Return the first ``limit`` rows (0: all), or the row of a key or token.

    ``which`` names a placement or a keyspace.
    """
    size = min(limit or PAGE, PAGE)
    if key is not None:
        which["token"] = str(token_of_key(key))
    pages = reading.pages("/v1/placements", PlacementsPage, limit=size, **which)
    first, rows = first_rows(pages, limit, lambda page: page.rows)
    return ShownRows(rows, first.ranges, first.placement, first.keyspaces)


def token_of_key(key: str) -> int:
    """Return the token of a key, as ``stele put`` and ``stele get`` compute it."""
    from stele.domain.ring.partitioner import token_of  # noqa: PLC0415 - only who asks for a key hashes

    return token_of(key.encode())


def key_text(key: str) -> str:
    return f"key '{key}' has token {token_of_key(key)} and"


def _chosen(keyspaces: list[Keyspace], name: str | None, epoch: int, key: str | None) -> list[str]:
    if name is None:
        return sorted({keyspace.placement for keyspace in keyspaces if not keyspace.tablets})
    for known in keyspaces:
        if known.name == name and not known.tablets:
            return [known.placement]
    spread = {known.name for known in keyspaces if known.tablets}
    if name.partition(".")[0] in spread:
        full_name = name if "." in name else f"{name}.TABLE"
        command = f"stele tablet list {full_name}" + (f" --key {shlex.quote(key)}" if key else "")
        raise CliError(
            f"'{name}' is in tablets, not on the ring.",
            f"`{command}` shows its replicas; `stele table list` lists the tables.",
        )
    names = ", ".join(k.name for k in keyspaces if not k.tablets) or "none"
    raise CliError(
        f"There is no keyspace '{name}' on the ring at epoch {epoch}.", f"Known: {names}."
    )
