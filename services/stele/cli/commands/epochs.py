"""``stele epochs``, ``epoch show``, ``diff`` and ``watch``: the history."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from stele.cli.client import Client, decode
from stele.cli.errors import CliError, UsageError
from stele.cli.history import Gone, HistoryWords, ShortIds, epochs_from, names_at, slices
from stele.cli.options import FROM_ONE, Format, Json, Where, moment_ms
from stele.cli.output import (
    clock,
    error_console,
    print_json,
    print_line,
    table,
)
from stele.cli.reading import StateReading, read_epochs
from stele.words.facts import EpochRow, fact_lines
from stele.words.state_diff import diff_lines
from stele.words.units import counted, visible

app = App(name="epoch", help="One epoch of the log.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Which epochs are looked for in the whole history. `stele log search` has more options."""

    actor: Annotated[str, Parameter(name="--actor")] = ""
    """Only what this actor asked for."""

    command: Annotated[str, Parameter(name="--command")] = ""
    """Only this command, such as create_keyspace; `stele log stats` lists them."""

    about: Annotated[str, Parameter(name=("--about", "--node"))] = ""
    """Only what is about this node, keyspace, KEYSPACE.TABLE or any id that a fact names."""

    since: Annotated[str, Parameter(name="--since")] = ""
    """By the clock of the writer: 2h (ago), 2026-11-22 or '2026-11-22 08:30'."""

    until: Annotated[str, Parameter(name="--until")] = ""
    """In the same forms as --since."""

    refused: Annotated[bool, Parameter(name="--refused", negative="")] = False
    """Only commands that were refused."""

    def asked(self) -> dict[str, object]:
        """Return the query for the metadata-log; empty if it matches all. Raises UsageError."""
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
MIN_PAGE = 100
MOST_HIDDEN = 10_000
"""Consecutive barriers after which the search for changes ends."""


def epochs(
    *,
    first: Annotated[int | None, Parameter(name="--from", validator=FROM_ONE)] = None,
    last: Annotated[int, Parameter(name=("--limit", "--last"), validator=FROM_ONE)] = DEFAULT_LAST,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    only: Only = Only(),
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the newest epochs of the log: what changed, who asked and why.

    Args:
        first: Begin with this epoch.
        last: Most epochs that are shown: the newest ones, or with --from the first ones.
        epoch: End with this epoch instead of the newest.
        barriers: Also show epochs that changed nothing: the barriers of reads.
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
        shown = [] if form.is_document else [msgspec.convert(raw, EpochRow) for raw in rows]
        words = HistoryWords(client, shown[0].epoch - 1).summaries(shown) if shown else []
    if form.is_document:
        form.print_document(rows)
        return
    form.print_table(_as_table(shown, words))
    if hidden:
        form.note(f"{counted(hidden, 'hidden barrier', 'hidden barriers')}: --barriers shows them.")
    note = _cut(rows, first, last, end, searched=bool(asked))
    if note:
        form.note(note)


def _cut(rows: Sequence[Raw], first: int | None, last: int, end: int, *, searched: bool) -> str:
    """Return a note about the epochs that the limit left out; empty if it left out none."""
    if len(rows) < last:
        return ""
    if searched:
        return f"The newest {last} that match: --limit shows more."
    if first is None:
        left_out = rows[0]["epoch"] - 1
        return f"{left_out} earlier epochs: --limit shows more." if left_out else ""
    left_out = end - rows[-1]["epoch"]
    return f"{left_out} later epochs: --limit shows more." if left_out else ""


DELETED: Final = "epoch_deleted"


def _as_table(rows: list[EpochRow], words: list[str]) -> Table:
    found = table("", "epoch", "at", "command", "by", "what became true", right=("epoch",))
    for column in found.columns[:3]:
        column.no_wrap = True
    for row, became in zip(rows, words, strict=True):
        found.add_row(str(row.epoch), clock(row.at_ms), row.command, by(row), became)
    return found


def by(row: EpochRow) -> str:
    """Return the actor and the reason."""
    return f"{row.actor}: {row.reason}" if row.reason else row.actor


def line_of(row: EpochRow, words: HistoryWords) -> Text:
    """Return an epoch on one line: time, command, actor and a summary of its facts."""
    head = f"{row.epoch:>6}  {clock(row.at_ms)}  {row.command:<18}"
    (became,) = words.summaries([row])
    return Text.assemble((head, "bold"), f"  {by(row):<12}  {became}")


def newest_such(
    client: Client,
    asked: dict[str, object],
    count: int,
    end: int,
    is_shown: Callable[[Raw], object] = bool,
) -> list[Raw]:
    """Return the last ``count`` shown epochs up to ``end`` that match, in order."""
    parts = slices(client, asked, count, end + 1, is_shown)
    return [raw for part in parts for raw in part.epochs if is_shown(raw)][::-1]


Raw = dict[str, Any]
"""An epoch as received, so that JSON shows all of it."""


def last_epochs(client: Client, end: int, count: int, barriers: bool) -> tuple[list[Raw], int]:
    """Return the last ``count`` shown epochs up to ``end``, and the number hidden between them.

    A note about deleted older epochs is printed separately.
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
            print_line(error.line(), error_console())
            break
        before -= limit
        hidden += _take(found, reversed(page), count, barriers)
    return found[::-1], hidden


def _not_deleted(client: Client, before: int, limit: int) -> tuple[list[Raw], int]:
    """Return a page of epochs before an epoch, and its length. Deleted epochs shorten it."""
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
    """Return the first ``count`` shown epochs from ``first`` on, and the number hidden between
    them.
    """
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
    """Add shown epochs, up to ``count`` in all. Return the number hidden before that."""
    hidden = 0
    for raw in page:
        if len(found) == count:
            break
        if barriers or raw["facts"]:
            found.append(raw)
        else:
            hidden += 1
    return hidden


@app.default
@app.command
def show(
    epoch: int,
    /,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Show one epoch with all of its facts."""
    with where.client() as client:
        raw = client.get_raw("metadata-log", f"/v1/epochs/{epoch}")
        row = decode(raw, EpochRow)
        names = None if json.as_json else names_at(client, epoch - 1)
        if names is not None:
            Gone(client, names).look_for_options(row)
    if names is None:
        print_json(raw)
        return
    print_line(Text.assemble((f"epoch {row.epoch}", "bold"), f"  {row.command}"))
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
            print_line(Text(f"  {name:<9} {value}"))
    for line in fact_lines(row, names):
        print_line(Text(f"  - {line}"))


def diff(
    first: int,
    second: int,
    /,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Compare the states at two epochs."""
    with where.client() as client:
        params = {"from": first, "to": second}
        raw = client.get_raw("metadata-log", "/v1/diff", **params)
        names = None if json.as_json else names_at(client, first, second)
    if names is None:
        print_json(raw)
        return
    lines = diff_lines(decode(raw, dict[str, Any]))
    told = ShortIds().shortened([names.named(line) for _, line in lines])
    for (sign, _), line in zip(lines, told, strict=True):
        style = {"+": "green", "-": "red"}.get(sign, "yellow")
        print_line(Text(f"{sign} {line}", style=style))
    if not lines:
        print_line(f"Epochs {first} and {second} have the same state.")


def newest_epoch(client: Client) -> int:
    """Return the newest committed epoch."""
    return StateReading(client).topology().epoch


def watch(
    *,
    first: Annotated[int | None, Parameter(name="--from", validator=FROM_ONE)] = None,
    count: Annotated[int | None, Parameter(name="--count", validator=FROM_ONE)] = None,
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Print each new epoch, in order and without gaps. Restarts of the metadata-log are bridged.

    Args:
        first: Begin with this earlier epoch.
        count: Exit after this number of epochs.
        barriers: Also show epochs that changed nothing: the barriers of reads.
    """
    with where.client() as client:
        begin = newest_epoch(client) + 1 if first is None else first
        words = HistoryWords(client, 0 if json.as_json else begin - 1)
        found = epochs_from(client, begin, where.timeout_s)
        rows = ((data, decode(data.encode(), EpochRow)) for data in found)
        shown = ((data, row) for data, row in rows if barriers or not row.is_barrier())
        for data, row in islice(shown, count):
            if json.as_json:
                sys.stdout.write(visible(data) + "\n")
                sys.stdout.flush()
            else:
                print_line(line_of(row, words))
