"""``stele epochs``, ``stele epoch show N``, ``stele diff N M``: the history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.client import Client, decode
from stele.cli.errors import UsageError
from stele.cli.facts import EpochRow, fact_lines, summary
from stele.cli.history_names import names_at
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import clock, console, print_json, print_value_as_json, table
from stele.cli.reading import Reading, read_epochs
from stele.cli.state_diff import diff_lines

app = App(name="epoch", help="One epoch of the log.")

DEFAULT_LAST = 20
MIN_PAGE = 100
MOST_HIDDEN = 10_000
"""After so many barriers in a row the search for changes ends."""


def epochs(
    *,
    first: Annotated[int | None, Parameter(name="--from", validator=FROM_ONE)] = None,
    last: Annotated[int, Parameter(name="--last", validator=FROM_ONE)] = DEFAULT_LAST,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The log: what changed at which epoch, who asked and why.

    Args:
        first: The first epoch that is shown.
        last: How many are shown; from the end, unless --from says where to begin.
        epoch: End at this epoch instead of the newest.
        barriers: Show those too that changed nothing: the barriers of reads.
    """
    with where.client() as client:
        end = newest_epoch(client) if epoch is None else epoch
        if (first or 1) > end:
            raise UsageError(f"There is no epoch {first or end}; the newest is {end}.")
        if first is None:
            rows, hidden = last_epochs(client, end, last, barriers)
        else:
            rows, hidden = first_epochs(client, first, end, last, barriers)
        shown = [] if json.as_json else [msgspec.convert(raw, EpochRow) for raw in rows]
        names = names_at(client, shown[0].epoch - 1) if shown else None
    if json.as_json:
        print_value_as_json(rows)
        return
    found = table("", "epoch", "at", "command", "by", "what became true", right=("epoch",))
    for row in shown:
        by = f"{row.actor}: {row.reason}" if row.reason else row.actor
        found.add_row(str(row.epoch), clock(row.at_ms), row.command, by, summary(row, names))
    out = console()
    out.print(found)
    if hidden:
        out.print(
            f"{hidden} barriers in between are hidden: --barriers shows them.", soft_wrap=True
        )


Raw = dict[str, Any]
"""An epoch as it came, so that JSON shows all of it."""


def last_epochs(client: Client, end: int, count: int, barriers: bool) -> tuple[list[Raw], int]:
    """The last ``count`` epochs up to ``end`` that are shown, and how many between them are not."""
    found: list[Raw] = []
    hidden, before = 0, end + 1
    while len(found) < count and before > 1 and hidden < MOST_HIDDEN:
        limit = min(before - 1, max(MIN_PAGE, count - len(found)) if not barriers else count)
        page = read_epochs(client, before - limit, limit, list[Raw])
        before -= limit
        hidden += _take(found, reversed(page), count, barriers)
    return found[::-1], hidden


def first_epochs(
    client: Client, first: int, end: int, count: int, barriers: bool
) -> tuple[list[Raw], int]:
    """The first ``count`` epochs from ``first`` on that are shown, and how many between them are not."""
    found: list[Raw] = []
    hidden, following = 0, first
    while len(found) < count and following <= end and hidden < MOST_HIDDEN:
        limit = min(end - following + 1, max(MIN_PAGE, count))
        page = read_epochs(client, following, limit, list[Raw])
        if not page:
            break
        following += len(page)
        hidden += _take(found, page, count, barriers)
    return found, hidden


def _take(found: list[Raw], page: Iterable[Raw], count: int, barriers: bool) -> int:
    """Add the epochs that are shown, up to ``count`` in all; how many before that are not."""
    hidden = 0
    for raw in page:
        if len(found) == count:
            break
        if barriers or raw["facts"]:
            found.append(raw)
        else:
            hidden += 1
    return hidden


@app.command
def show(
    epoch: int,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """One epoch with all of its facts."""
    with where.client() as client:
        raw = client.get_raw("metadata-log", f"/v1/epochs/{epoch}")
        names = None if json.as_json else names_at(client, epoch - 1)
    if json.as_json:
        print_json(raw)
        return
    row = decode(raw, EpochRow)
    out = console()
    out.print(Text.assemble((f"epoch {row.epoch}", "bold"), f"  {row.command}"), soft_wrap=True)
    for name, value in (
        ("state id", row.state_id),
        ("follows", row.prev_state_id),
        ("request", row.request_id),
        ("by", row.actor),
        ("reason", row.reason),
        ("from", row.origin),
        ("at", clock(row.at_ms)),
    ):
        if value:
            out.print(Text(f"  {name:<9} {value}"), soft_wrap=True)
    for line in fact_lines(row, names):
        out.print(Text(f"  - {line}"), soft_wrap=True)


def diff(
    first: int,
    second: int,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """What differs between the states at two epochs."""
    with where.client() as client:
        params = {"from": first, "to": second}
        raw = client.get_raw("metadata-log", "/v1/diff", **params)
        names = None if json.as_json else names_at(client, first, second)
    if names is None:
        print_json(raw)
        return
    lines = diff_lines(decode(raw, dict[str, Any]))
    out = console()
    for sign, line in lines:
        out.print(
            Text(
                f"{sign} {names.named(line)}", style={"+": "green", "-": "red"}.get(sign, "yellow")
            ),
            soft_wrap=True,
        )
    if not lines:
        out.print(f"Epochs {first} and {second} have the same state.", soft_wrap=True)


def newest_epoch(client: Client) -> int:
    """The newest committed epoch."""
    return Reading(client).topology().epoch
