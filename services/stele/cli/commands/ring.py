"""``stele ring``: ranges and who reads and writes them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from rich.text import Text

from stele.cli.errors import CliError, UsageError
from stele.cli.options import FROM_ZERO, Read, Where
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
    key: Annotated[str | None, Parameter(name="--key")] = None,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 64,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The ring of each placement: range, share, replicas that are read and written.

    Replicas that are written but not yet read are marked with +, those read but leaving with -.

    Args:
        keyspace: Only the placement of this keyspace; of a table with tablets, see `stele tablet list`.
        key: Only the range that this key of the keyspace is in.
        limit: Most ranges that are shown; 0 shows all.
    """
    if key is not None and keyspace is None:
        raise UsageError("--key is a key of one keyspace.", "stele ring KEYSPACE --key KEY")
    with where.client() as client:
        reading = read.of(client)
        keyspaces = reading.keyspaces()
        chosen = _chosen(keyspaces, keyspace, reading.epoch)
        found = {name: shown_rows(reading, limit, key, placement=name) for name in chosen}
    if read.as_json:
        placements = {name: shown.rows for name, shown in found.items()}
        print_value_as_json(
            {"epoch": reading.epoch, "state_id": reading.state_id, "placements": placements}
        )
        return
    for name, (rows, ranges, _, _) in found.items():
        if key is not None:
            console().print(f"{key_text(key)} is in this range", soft_wrap=True, markup=False)
        _print(f"placement {name} at epoch {reading.epoch}", rows)
        if len(rows) < ranges and key is None:
            console().print(
                f"{ranges - len(rows)} more ranges: --limit 0 shows all.", soft_wrap=True
            )
    if not found:
        console().print("No placements: create a keyspace with `stele keyspace create`.")


def replicas(row: RangeReplicas) -> Text:
    """``n1 n2 n3 +n4``: + is written only, - is read only. So it is with shards: ``n1:0 n2:3+1``."""
    stable = [row.place(node) for node in row.reads if node in row.writes]
    coming = [f"+{row.place(node)}" for node in row.writes if node not in row.reads]
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


class Shown(NamedTuple):
    """Rows that are shown, of how many, of which placement, and whose placement that is."""

    rows: list[RangeReplicas]
    ranges: int
    placement: str
    users: tuple[str, ...]


def shown_rows(reading: Reading, limit: int, key: str | None = None, **which: str) -> Shown:
    """The first ``limit`` rows, 0: all, or that of a key or a token; of a placement or a keyspace."""
    size = min(limit or PAGE, PAGE)
    if key is not None:
        which["token"] = str(token_of_key(key))
    pages = reading.pages("/v1/placements", PlacementsPage, limit=size, **which)
    first = next(pages)
    rest = (row for page in pages for row in page.rows)
    missing = max(0, limit - len(first.rows)) if limit else None
    rows = [*first.rows, *islice(rest, missing)]
    return Shown(rows, first.ranges, first.placement, first.keyspaces)


def token_of_key(key: str) -> int:
    """Where ``stele put`` and ``stele get`` find a key on the ring."""
    from stele.domain.ring.partitioner import token_of  # noqa: PLC0415 - only who asks for a key hashes

    return token_of(key.encode())


def key_text(key: str) -> str:
    return f"key '{key}' has token {token_of_key(key)} and"


def _chosen(keyspaces: list[Keyspace], name: str | None, epoch: int) -> list[str]:
    if name is None:
        return sorted({keyspace.placement for keyspace in keyspaces if not keyspace.tablets})
    for known in keyspaces:
        if known.name == name and not known.tablets:
            return [known.placement]
    spread = {known.name for known in keyspaces if known.tablets}
    if name.partition(".")[0] in spread:
        raise CliError(
            f"'{name}' is in tablets, not on the ring.",
            "`stele table list` shows the tables, `stele tablet list KEYSPACE.TABLE` where one is.",
        )
    names = ", ".join(k.name for k in keyspaces if not k.tablets) or "none"
    raise CliError(
        f"There is no keyspace '{name}' on the ring at epoch {epoch}.", f"Known: {names}."
    )
