"""``stele log stats``: what the log is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from stele.cli.client import Client
from stele.cli.commands.epochs import newest_epoch
from stele.cli.history_search import Progress, not_kept
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import (
    clock,
    console,
    counted,
    percent,
    print_fields,
    print_value_as_json,
    size,
    table,
)
from stele.cli.reading import SERVICE
from stele.domain.epoch_stats import MINUTE_MS, Count, EpochStats, merged
from stele.runtime.answers.stats import StatsAnswer

PATH = "/v1/epochs/stats"
DEFAULT_LAST = 10_000
MOST_ROWS = 10
"""Of each table; JSON has all."""


def stats(
    *,
    last: Annotated[int, Parameter(name="--last", validator=FROM_ONE)] = DEFAULT_LAST,
    everything: Annotated[bool, Parameter(name="--all", negative="")] = False,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Epochs and bytes by command and by actor, by minute and by size; the largest records; offsets.

    The metadata-log counts, some thousands of epochs at each call: a minute and more for ten million.

    Args:
        last: Of how many of the newest epochs.
        everything: Of all epochs that the log keeps.
    """
    with where.client() as client:
        newest = newest_epoch(client)
        first = 1 if everything else max(1, newest - last + 1)
        found, answer = _counted(client, first, newest)
    if json.as_json:
        skipped = {"losers": answer.losers, "strays": answer.strays}
        print_value_as_json({"newest": newest, **skipped, "stats": found})
        return
    _show(found, answer)


def _counted(client: Client, first: int, newest: int) -> tuple[EpochStats, StatsAnswer]:
    """Slice after slice; and the last one's answer."""
    found, progress = EpochStats(), Progress()
    while True:
        params = {"from": first, "to": newest}
        answer = client.get(SERVICE, PATH, StatsAnswer, **params)
        found = merged(found, answer.stats)
        if not answer.next_from:
            progress.end()
            return found, answer
        first = answer.next_from
        progress.tell(f"counted {found.total.epochs} epochs, up to {found.last} of {newest}")


def _show(found: EpochStats, answer: StatsAnswer) -> None:
    total, out = found.total, console()
    losers = counted(answer.losers, "loser", "losers")
    strays = counted(answer.strays, "stray", "strays")
    span_s = (found.last_at_ms - found.first_at_ms) / 1000
    per_s = f", {total.epochs / span_s:,.1f}/s" if span_s > 0 else ""
    print_fields(
        [
            ("epochs", f"{found.first} to {found.last}: {total.epochs}{per_s}"),
            ("time", f"{clock(found.first_at_ms)} to {clock(found.last_at_ms)}"),
            ("offsets", f"{found.first_offset} to {found.last_offset}"),
            ("bytes", f"{size(total.size_bytes)}, {_mean(total)} a record"),
            ("beside", f"{counted(found.beside, 'record', 'records')} among them won nothing"),
            ("skipped", f"{losers} and {strays}, of all that this instance has read"),
        ]
    )
    older = not_kept(answer.begins, answer.stores)
    if older:
        out.print(older, soft_wrap=True)
    out.print(_by("command", found.commands, total))
    out.print(_by("actor", found.actors, total))
    minutes = table("", "minute", "epochs", "per s", right=("epochs", "per s"))
    for minute in sorted(found.minutes)[-MOST_ROWS:]:
        epochs = found.minutes[minute]
        minutes.add_row(clock(minute * MINUTE_MS), str(epochs), f"{epochs / 60:,.1f}")
    out.print(minutes)
    sizes = table("", "record size", "records", "", right=("record size", "records"))
    for bits, records in sorted(found.sizes.items()):
        sizes.add_row(f"< {size(1 << bits)}", str(records), percent(records, total.epochs))
    out.print(sizes)
    largest = table(
        "", "largest", "epoch", "offset", "command", "actor", right=("largest", "epoch", "offset")
    )
    for each in found.largest:
        place = str(each.epoch), str(each.offset)
        largest.add_row(size(each.size_bytes), *place, each.command, each.actor)
    out.print(largest)


def _by(what: str, counts: dict[str, Count], total: Count) -> Table:
    shown = table("", what, "epochs", "", "bytes", "", right=("epochs", "bytes"))
    ranked = sorted(counts.items(), key=lambda item: (-item[1].epochs, item[0]))
    rest = _sum(count for _, count in ranked[MOST_ROWS:])
    for name, count in (*ranked[:MOST_ROWS], ("(others)", rest)):
        if count.epochs:
            shown.add_row(
                name or "-",
                str(count.epochs),
                percent(count.epochs, total.epochs),
                size(count.size_bytes),
                percent(count.size_bytes, total.size_bytes),
            )
    return shown


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())


def _mean(total: Count) -> str:
    return size(total.size_bytes / total.epochs) if total.epochs else "nothing"
