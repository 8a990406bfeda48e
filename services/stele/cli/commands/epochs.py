"""``stele epochs``, ``stele epoch show N``, ``stele diff N M``: the history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from stele.cli.client import Client, decode
from stele.cli.errors import CliError, UsageError
from stele.cli.history_names import HistoryWords, names_at
from stele.cli.history_search import slices
from stele.cli.moments import moment_ms
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import (
    clock,
    console,
    error_console,
    print_json,
    print_value_as_json,
    table,
)
from stele.cli.reading import Reading, read_epochs
from stele.cli.short_ids import ShortIds
from stele.words.facts import EpochRow, fact_lines
from stele.words.state_diff import diff_lines

app = App(name="epoch", help="One epoch of the log.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Which epochs are looked for in the whole history; `stele log search` can ask for more."""

    actor: Annotated[str, Parameter(name="--actor")] = ""
    """Only what this actor asked for."""

    command: Annotated[str, Parameter(name="--command")] = ""
    """Only this command, such as create_keyspace."""

    about: Annotated[str, Parameter(name=("--about", "--node"))] = ""
    """Only what is about this node, keyspace or KEYSPACE.TABLE."""

    since: Annotated[str, Parameter(name="--since")] = ""
    """Such as 2h (ago), 2026-11-22 or '2026-11-22 08:30'."""

    until: Annotated[str, Parameter(name="--until")] = ""
    """So too."""

    refused: Annotated[bool, Parameter(name="--refused", negative="")] = False
    """Only commands that were refused."""

    def asked(self) -> dict[str, object]:
        """As the metadata-log is asked; empty when everything is meant. Raises UsageError."""
        now_ms = time.time_ns() // 1_000_000
        asked: dict[str, object] = {
            "actor": self.actor,
            "command": self.command,
            "about": self.about,
            "refused": "true" if self.refused else "",
            "since_ms": moment_ms(self.since, "--since", now_ms) if self.since else "",
            "until_ms": moment_ms(self.until, "--until", now_ms) if self.until else "",
        }
        return {name: value for name, value in asked.items() if value != ""}


DEFAULT_LAST = 20
TABLE_WIDTH = 130
"""Columns of the terminal from which on the table's last column has room for an id."""
MIN_PAGE = 100
MOST_HIDDEN = 10_000
"""After so many barriers in a row the search for changes ends."""


def epochs(
    *,
    first: Annotated[int | None, Parameter(name="--from", validator=FROM_ONE)] = None,
    last: Annotated[int, Parameter(name="--last", validator=FROM_ONE)] = DEFAULT_LAST,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    only: Only = Only(),
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
            raise CliError(f"There is no epoch {first or end}; the newest is {end}.")
        asked = only.asked()
        if asked:
            if first is not None or barriers:
                raise UsageError(
                    f"{'--from' if first else '--barriers'} goes with no search.",
                    "Begin with --since, or end with --epoch.",
                )
            rows, hidden = newest_such(client, asked, last, end), 0
        elif first is None:
            rows, hidden = last_epochs(client, end, last, barriers)
        else:
            rows, hidden = first_epochs(client, first, end, last, barriers)
        shown = [] if json.as_json else [msgspec.convert(raw, EpochRow) for raw in rows]
        words = HistoryWords(client, shown[0].epoch - 1).summaries(shown) if shown else []
    if json.as_json:
        print_value_as_json(rows)
        return
    out = console()
    for part in _as_table(shown, words) if out.width >= TABLE_WIDTH else _as_lines(shown, words):
        out.print(part, soft_wrap=isinstance(part, Text))
    if hidden:
        out.print(
            f"{hidden} barriers in between are hidden: --barriers shows them.", soft_wrap=True
        )


DELETED: Final = "epoch_deleted"


def _as_table(rows: list[EpochRow], words: list[str]) -> Iterator[Table]:
    found = table("", "epoch", "at", "command", "by", "what became true", right=("epoch",))
    for column in found.columns[:3]:
        column.no_wrap = True
    for row, became in zip(rows, words, strict=True):
        found.add_row(str(row.epoch), clock(row.at_ms), row.command, by(row), became)
    yield found


def _as_lines(rows: list[EpochRow], words: list[str]) -> Iterator[Text]:
    """For a narrow terminal: in columns ids would be broken, and could not be copied."""
    for row, became in zip(rows, words, strict=True):
        head = f"{row.epoch:>6}  {clock(row.at_ms)}  {row.command}"
        yield Text.assemble((head, "bold"), f"  by {by(row)}" if row.actor else "")
        yield Text(f"        {became}")


def by(row: EpochRow) -> str:
    """Who asked, and why."""
    return f"{row.actor}: {row.reason}" if row.reason else row.actor


def newest_such(client: Client, asked: dict[str, object], count: int, end: int) -> list[Raw]:
    """The last ``count`` epochs up to ``end`` that a search finds, in their order."""
    found = [raw for part in slices(client, asked, count, end + 1) for raw in part.epochs]
    return found[::-1]


Raw = dict[str, Any]
"""An epoch as it came, so that JSON shows all of it."""


def last_epochs(client: Client, end: int, count: int, barriers: bool) -> tuple[list[Raw], int]:
    """The last ``count`` epochs up to ``end`` that are shown, and how many between them are not. That older
    ones were deleted is told beside them.
    """
    found: list[Raw] = []
    hidden, before = 0, end + 1
    while len(found) < count and before > 1 and hidden < MOST_HIDDEN:
        limit = min(before - 1, max(MIN_PAGE, count - len(found)) if not barriers else count)
        try:
            page, limit = _not_deleted(client, before, limit)
        except CliError as error:
            if error.code != DELETED or not found:
                raise
            error_console().print(error.line(), soft_wrap=True)
            break
        before -= limit
        hidden += _take(found, reversed(page), count, barriers)
    return found[::-1], hidden


def _not_deleted(client: Client, before: int, limit: int) -> tuple[list[Raw], int]:
    """A page of what is before an epoch, and how long it is: shorter where some of it was deleted."""
    while True:
        try:
            return read_epochs(client, before - limit, limit, list[Raw]), limit
        except CliError as error:
            if error.code != DELETED or limit == 1:
                raise
            limit = (limit + 1) // 2


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
    told = ShortIds().shortened([names.named(line) for _, line in lines])
    out = console()
    for (sign, _), line in zip(lines, told, strict=True):
        style = {"+": "green", "-": "red"}.get(sign, "yellow")
        out.print(Text(f"{sign} {line}", style=style), soft_wrap=True)
    if not lines:
        out.print(f"Epochs {first} and {second} have the same state.", soft_wrap=True)


def newest_epoch(client: Client) -> int:
    """The newest committed epoch."""
    return Reading(client).topology().epoch
