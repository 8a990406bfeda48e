"""``stele log tail``: the newest epochs, and with ``--follow`` those that come."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

from stele.cli.client import Client
from stele.cli.commands.epochs import by, last_epochs
from stele.cli.epoch_stream import epochs_from
from stele.cli.history_names import HistoryWords
from stele.cli.history_search import slices
from stele.cli.options import FROM_ZERO, Json, Where
from stele.cli.output import clock, console
from stele.cli.reading import Reading
from stele.words.facts import EpochRow
from stele.words.visible import visible

DEFAULT_LAST = 10
Raw = dict[str, Any]
"""An epoch as it came."""


def tail(
    *,
    last: Annotated[int, Parameter(name="--last", validator=FROM_ZERO)] = DEFAULT_LAST,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    facts: Annotated[str, Parameter(name="--facts")] = "",
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The newest epochs, the oldest of them first; with --follow also those that come.

    Each is shown once and none is left out, whatever is cut or restarted: the stream is taken up after the last
    epoch that was shown. With --json each epoch is a line.

    Args:
        last: How many of those that are there already.
        follow: Go on with those that come, until Ctrl-C.
        facts: Only epochs with facts of these names, with commas, and only these facts of them.
        barriers: Show those too that changed nothing: the barriers of reads.
    """
    only = frozenset(filter(None, facts.split(",")))
    with where.client() as client:
        newest = Reading(client).topology()
        end = newest.epoch
        shown = _last(client, end, last, only, barriers)
        words = None if json.as_json else HistoryWords(client, end)
        _print(shown, words)
        if follow:
            live = epochs_from(client, end + 1, where.timeout_s, newest.state_id)
            _print(_chosen(map(msgspec.json.decode, live), only, barriers), words)


def _last(
    client: Client, end: int, count: int, only: frozenset[str], barriers: bool
) -> Iterable[Raw]:
    if not only:
        return last_epochs(client, end, count, barriers)[0] if count else ()
    asked = {"facts": ",".join(sorted(only))}
    found = [raw for part in slices(client, asked, count, end + 1) for raw in part.epochs]
    return _chosen(reversed(found), only, barriers)


def _chosen(epochs: Iterable[Raw], only: frozenset[str], barriers: bool) -> Iterator[Raw]:
    for raw in epochs:
        facts = [*_of_names(raw["facts"], only)] if only else raw["facts"]
        if facts or (barriers and not only):
            yield {**raw, "facts": facts}


def _of_names(facts: Iterable[Raw], only: frozenset[str]) -> Iterator[Raw]:
    """A part with those of its own."""
    for fact in facts:
        inside = [*_of_names(fact.get("facts", ()), only)]
        if inside:
            yield {**fact, "facts": inside}
        elif fact["type"] in only:
            yield fact


def _print(epochs: Iterable[Raw], words: HistoryWords | None) -> None:
    """A line for each as it comes; as JSON without ``words``."""
    for raw in epochs:
        if words is None:
            sys.stdout.write(visible(msgspec.json.encode(raw).decode()) + "\n")
            sys.stdout.flush()
        else:
            console().print(line_of(msgspec.convert(raw, EpochRow), words), soft_wrap=True)


def line_of(row: EpochRow, words: HistoryWords) -> Text:
    """An epoch on one line: when, what was asked for by whom and why, and what became true."""
    head = f"{row.epoch:>6}  {clock(row.at_ms)}  {row.command:<18}"
    (became,) = words.summaries([row])
    return Text.assemble((head, "bold"), f"  {by(row):<12}  {became}")
