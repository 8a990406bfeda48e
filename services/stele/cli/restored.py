"""The proof that what was undone has left nothing: its ranges have the replicas of before again."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from stele.cli.client import Client
from stele.cli.output import counted
from stele.cli.reading import Reading
from stele.domain.requests.facts import Request
from stele.domain.ring.ranges import RangeReplicas, upper_bound
from stele.runtime.answers.metadata_log import PlannedRow, TransitionPage

PAGE = 10_000


class Restored(msgspec.Struct, frozen=True):
    """How many ranges were compared at an epoch, and those that are not as before."""

    epoch: int
    ranges: int
    differing: tuple[PlannedRow, ...]
    by_many: bool = False
    """Transitions of its own did not carry it out, but requests that it led to."""

    def text(self) -> str:
        if self.by_many:
            return "each tablet has as many replicas as before, which need not be the same ones"
        if not self.ranges:
            return "no range had changed its replicas"
        if self.differing:
            of = counted(self.ranges, "range is", "ranges are")
            return f"{len(self.differing)} of {of} not as before it began"
        return (
            f"the placements are those of before: {counted(self.ranges, 'range', 'ranges')} that it had to"
            f" change compared at epoch {self.epoch}"
        )


def restored(client: Client, request: Request) -> Restored:
    """Compare what the transition of an undone request was to change with its end. Raises CliError."""
    if not request.started_epoch:
        return Restored(request.finished_epoch, 0, ())
    planned = _planned(client, request)
    if request.replication and not planned:
        return Restored(request.finished_epoch, 0, (), by_many=True)
    reading = Reading(client, request.finished_epoch)
    differing = tuple(
        row
        for name, rows in planned.items()
        for row in differing_rows(rows, [r for p in reading.placement(name, PAGE) for r in p.rows])
    )
    return Restored(request.finished_epoch, sum(map(len, planned.values())), differing)


def differing_rows(
    planned: Iterable[PlannedRow], rows: Sequence[RangeReplicas]
) -> Iterable[PlannedRow]:
    """Planned ranges that are not read from and written to exactly their replicas of before."""
    starts = [row.start for row in rows]
    for wanted in planned:
        row = rows[bisect_right(starts, wanted.start) - 1]
        inside = upper_bound(wanted.end) <= upper_bound(row.end)
        same = row.reads == row.writes == wanted.old and row.shards == wanted.old_shards
        if not inside or not same or row.other_shards:
            yield wanted


def _planned(client: Client, request: Request) -> dict[str, list[PlannedRow]]:
    """The ranges of the transition that carried the request out, by placement, as it was opened."""
    reading = Reading(client, request.started_epoch)
    transition = reading.request(request.request_id).transition
    found = defaultdict[str, list[PlannedRow]](list)
    if transition is not None:
        for page in reading.pages(f"/v1/transitions/{transition.transition_id}", TransitionPage):
            for row in page.rows:
                found[row.placement].append(row)
    return found
