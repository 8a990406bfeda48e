"""``stele watch``: epochs as they happen."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from stele.cli.client import decode
from stele.cli.commands.epochs import newest_epoch
from stele.cli.epoch_stream import epochs_from
from stele.cli.history_names import names_at
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import clock, console
from stele.words.facts import EpochRow, summary
from stele.words.visible import visible


def watch(
    *,
    first: Annotated[int | None, Parameter(name="--from", validator=FROM_ONE)] = None,
    count: Annotated[int | None, Parameter(name="--count", validator=FROM_ONE)] = None,
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Every change from now on, in order, without gaps, over restarts of the metadata-log.

    Args:
        first: Begin at this epoch of the past.
        count: Leave after so many epochs that are shown.
        barriers: Show those too that changed nothing: the barriers of reads.
    """
    out = console()
    with where.client() as client:
        begin = newest_epoch(client) + 1 if first is None else first
        names = None if json.as_json else names_at(client, begin - 1)
        found = epochs_from(client, begin, where.timeout_s)
        rows = ((data, decode(data.encode(), EpochRow)) for data in found)
        shown = ((data, row) for data, row in rows if barriers or not row.is_barrier())
        for data, row in islice(shown, count):
            if json.as_json:
                sys.stdout.write(visible(data) + "\n")
                sys.stdout.flush()
            else:
                head = f"{row.epoch:>6}  {clock(row.at_ms)}  {row.command:<18}"
                out.print(Text.assemble((head, "bold"), f"  {summary(row, names)}"), soft_wrap=True)
