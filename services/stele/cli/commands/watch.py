"""``stele watch``: epochs as they happen."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated

from cyclopts import Parameter

from stele.cli.client import decode
from stele.cli.commands.epochs import newest_epoch
from stele.cli.commands.log_tail import line_of
from stele.cli.epoch_stream import epochs_from
from stele.cli.history_names import HistoryWords
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import console
from stele.words.facts import EpochRow
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
        words = HistoryWords(client, 0 if json.as_json else begin - 1)
        found = epochs_from(client, begin, where.timeout_s)
        rows = ((data, decode(data.encode(), EpochRow)) for data in found)
        shown = ((data, row) for data, row in rows if barriers or not row.is_barrier())
        for data, row in islice(shown, count):
            if json.as_json:
                sys.stdout.write(visible(data) + "\n")
                sys.stdout.flush()
            else:
                out.print(line_of(row, words), soft_wrap=True)
