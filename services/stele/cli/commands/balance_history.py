"""``stele balance history``: what the balancer has asked for, and what became of it."""

from __future__ import annotations

import time
from typing import Annotated, Final

from cyclopts import Parameter, validators

from stele.cli.client import Client
from stele.cli.commands.table_snapshot import require_table_name
from stele.cli.errors import CliError, UsageError
from stele.cli.options import FROM_ONE, FROM_ZERO, Json, Where
from stele.cli.output import clock, console, duration, print_value_as_json, styled
from stele.cli.output import table as table_of
from stele.cli.reading import EPOCHS_IN_ANSWER, Reading, read_epochs
from stele.cli.spans import span_ms
from stele.domain.names import BALANCER
from stele.words.decisions import FACTS, Decision, Past, Wanted
from stele.words.facts import EpochRow

ANYBODY: Final = "anybody"
DEFAULT_LIMIT: Final = 20
MOST: Final = 10_000
"""Decisions that are told at once; each takes a kilobyte."""
MOST_EPOCHS: Final = 100_000
"""After so many the search ends, within half a minute, and says from where it goes on."""
FIRST_PAGE: Final = 100
GONE: Final = frozenset({"epoch_not_found", "epoch_truncated", "epoch_deleted"})


def history(
    table: str = "",
    tablet: Annotated[int | None, Parameter(validator=FROM_ZERO)] = None,
    /,
    *,
    by: str = BALANCER,
    since: str = "",
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST))] = DEFAULT_LIMIT,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """What the balancer has asked for, the newest first: moves, splits, merges, repairs, cancels, refusals.

    With --by anybody also what users asked for, changes of a keyspace's replication among it.

    Each with its reason and what became of it, read from the log, which keeps them when the list of requests
    has long forgotten them. A tablet's number is that of when it was asked for.

    Args:
        table: Only what is about KEYSPACE.TABLE.
        tablet: Only moves of the tablet of this number.
        by: Who asked: the balancer, a user by name, or anybody.
        since: Only what was asked for from this epoch on, or in this time until now, such as 90s, 30m or 2h.
        epoch: End at this epoch instead of the newest.
        limit: How many are shown.
    """
    if table:
        require_table_name(table)
    first, since_ms = _since(since)
    with where.client() as client:
        reading = Reading(client, epoch)
        wanted = Wanted("" if by == ANYBODY else by, reading.map_owner(table), tablet)
        past = Past(wanted, reading.all_names())
        found, back_to = _look_back(client, past, reading.epoch, limit, first, since_ms)
    if json.as_json:
        print_value_as_json({"epoch": reading.epoch, "looked_back_to": back_to, "decisions": found})
        return
    _show(found, reading.epoch, back_to, wanted)
    if reading.epoch - back_to + 1 >= MOST_EPOCHS and len(found) < limit:
        console().print(
            f"{MOST_EPOCHS} epochs were looked through: --epoch {max(1, back_to - 1)} goes on.",
            soft_wrap=True,
        )


def _since(text: str) -> tuple[int, int]:
    """The epoch, and the time in milliseconds since 1970, from which on. Raises UsageError."""
    if not text:
        return 1, 0
    if text.isascii() and text.isdigit() and len(text) < 18:
        return max(1, int(text)), 0
    try:
        return 1, time.time_ns() // 1_000_000 - span_ms(text, "--since")
    except UsageError as error:
        raise UsageError(
            f"--since '{text}' is neither an epoch nor a span of time.",
            "For example --since 1200 or --since 2h.",
        ) from error


def _look_back(
    client: Client, past: Past, newest: int, limit: int, first: int, since_ms: int
) -> tuple[list[Decision], int]:
    """Decisions up to an epoch, the newest first, and the epoch down to which was looked."""
    found = list[Decision]()
    before, size, least = newest + 1, FIRST_PAGE, max(first, newest + 1 - MOST_EPOCHS)
    while before > least:
        begin = max(least, before - size)
        try:
            rows = read_epochs(client, begin, before - begin, list[EpochRow], FACTS)
        except CliError as error:
            if error.code not in GONE:
                raise
            return found, before  # the log is kept no further back
        for row in reversed(rows):
            if row.at_ms < since_ms:
                return found, row.epoch + 1
            for decision in past.add(row):
                found.append(decision)
                if len(found) == limit:
                    return found, row.epoch
        before, size = begin, EPOCHS_IN_ANSWER
    return found, before


def _show(found: list[Decision], epoch: int, back_to: int, wanted: Wanted) -> None:
    who = [] if wanted.by == BALANCER else ["by"]
    columns = ("at", "epoch", "what", *who, "because", "outcome", "took")
    title = f"decisions from epoch {back_to} to {epoch}"
    shown = table_of(title, *columns, right=("epoch", "took"))
    for each in found:
        outcome = styled(each.outcome)
        if each.detail:
            outcome.append(f": {each.detail}", style="default")
        took = "" if each.took_s is None else duration(each.took_s)
        by = [each.by] if who else []
        shown.add_row(
            clock(each.at_ms), str(each.epoch), each.what, *by, each.reason, outcome, took
        )
    console().print(shown)
    if not found:
        console().print("nothing was asked for", soft_wrap=True)
