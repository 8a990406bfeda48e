"""Operations and single changes of a stretch of the log, for the time line. Pure functions.

An operation is a request with all epochs that carry it out. Other epochs are single changes, or
background: fences, barriers and other work of the services.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stele.console.epoch_text import EpochText, epoch_text
from stele.console.views import copied
from stele.domain.model.requests import Request
from stele.domain.names import COORDINATOR
from stele.domain.registry import FACTS
from stele.words.facts import EpochRow, OpenTransitions, flat
from stele.words.names import HistoryNames

LARGE: Final = frozenset({"PlacementChanged", "TransitionPlanned"})
"""Facts that are not read: they hold ranges, and only operations and keyspaces have them."""
READ: Final = ",".join(sorted({kind.__name__ for kind in FACTS} - LARGE))
BACKGROUND: Final = frozenset({"RequestForgotten", "ServiceChanged", "ServiceForgotten"})
"""Facts of epochs that no person requested, unless other facts are beside them. Epochs and refusals
of the coordinator are background too."""


class Step(msgspec.Struct, frozen=True):
    """The state of an operation from an epoch on. ``pending`` is that before its transition."""

    state: str
    epoch: int
    at_ms: int


class RequestTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A request, its states in order, and the epochs that are about it.

    Times are milliseconds since 1970; ``finished_at_ms`` is 0 while it runs.
    """

    request_id: str
    what: str
    kind: str
    status: str
    actor: str
    reason: str
    error: str
    submitted_epoch: int
    finished_epoch: int
    submitted_at_ms: int
    finished_at_ms: int
    steps: tuple[Step, ...]
    epochs: tuple[int, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Operations and changes of the epochs ``first`` to ``last``, the newest first.

    ``next_before`` is where the next page starts; 0 means that there is none. ``background`` is
    the number of epochs that are in neither list.
    """

    newest: int
    first: int
    last: int
    first_ms: int
    last_ms: int
    next_before: int
    operations: tuple[RequestTimeline, ...]
    changes: tuple[EpochText, ...]
    background: int


def earliest(rows: Iterable[EpochRow]) -> int:
    """Return the epoch in which the oldest operation of these epochs was submitted; 0: none."""
    return min((r.submitted_epoch for row in rows for r in _requests(row)), default=0)


def timeline(rows: list[EpochRow], names: HistoryNames, newest: int, begins: int) -> Timeline:
    """Return the operations and changes of ``rows``, which are in log order and not empty."""
    requests = dict[str, Request]()
    transitions = OpenTransitions()
    steps, epochs = dict[str, list[Step]](), dict[str, list[int]]()
    changes, background = list[EpochText](), 0
    for row in map(_flat, rows):
        touched = dict[str, None]()
        for request in _requests(row):
            requests[request.request_id] = request
            touched[request.request_id] = None
        for fact in row.facts:
            ids, state = transitions.take(fact)
            for each in ids:
                touched[each] = None
                known = steps.setdefault(each, [])
                if state and (not known or known[-1].state != state):
                    known.append(Step(state, row.epoch, row.at_ms))
        for each in touched:
            epochs.setdefault(each, []).append(row.epoch)
        if touched:
            epoch_text(row, names)  # so that names learn from it
        elif _is_background(row):
            background += 1
        else:
            changes.append(epoch_text(row, names))
    found = [
        _operation(request, names, steps.get(each, []), epochs[each])
        for each, request in requests.items()
    ]
    first, last = rows[0], rows[-1]
    return Timeline(
        newest=newest,
        first=first.epoch,
        last=last.epoch,
        first_ms=first.at_ms,
        last_ms=last.at_ms,
        next_before=first.epoch if first.epoch > begins else 0,
        operations=tuple(sorted(found, key=lambda o: (-o.submitted_epoch, o.request_id))),
        changes=tuple(changes[::-1]),
        background=background,
    )


def _operation(
    request: Request, names: HistoryNames, steps: list[Step], epochs: list[int]
) -> RequestTimeline:
    return copied(
        RequestTimeline,
        request,
        what=names.operation(request.request_id) or request.kind,
        steps=(Step("pending", request.submitted_epoch, request.submitted_at_ms), *steps),
        epochs=tuple(epochs),
    )


def _flat(row: EpochRow) -> EpochRow:
    return msgspec.structs.replace(row, facts=tuple(flat(row.facts)))


def _requests(row: EpochRow) -> Iterator[Request]:
    for fact in flat(row.facts):
        if fact.get("type") == "RequestChanged":
            try:
                yield msgspec.convert(fact["request"], Request)
            except msgspec.ValidationError:  # of a build that knows more
                continue


def _is_background(row: EpochRow) -> bool:
    if all(fact.get("type") == "CommandRefused" for fact in row.facts):
        return all(fact["actor"] == COORDINATOR for fact in row.facts)
    return row.actor == COORDINATOR or {fact.get("type") for fact in row.facts} <= BACKGROUND
