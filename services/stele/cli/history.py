"""The history of the log: search, stream, steps of one request, words and short ids."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from stele.cli.client import Client, ask, decode
from stele.cli.errors import CliError, UnreachableError
from stele.cli.output import joined
from stele.cli.reading import SERVICE, StateReading
from stele.domain.model.requests import Request
from stele.words.facts import EpochRow, OpenTransitions, altered_table, flat, summary
from stele.words.names import ID, Fact, HistoryNames, named_by

SCHEMA: Final = "KeyspaceChanged,TableChanged"
MOST_LOOKED_FOR: Final = 20
"""Limit of lookups of dropped names, one call each. For others, the ids are shown."""


def names_at(client: Client, *epochs: int) -> HistoryNames:
    """Return all names at these epochs; none for a state that is not available."""
    found = HistoryNames()
    for epoch in epochs:
        if epoch < 1:
            continue
        reading = StateReading(client, epoch, "local")
        with suppress(CliError):
            found.add(reading.keyspaces(), reading.tables(), reading.requests(unfinished="true"))
    return found


def names_of(client: Client, reading: StateReading, requests: Sequence[Request]) -> dict[str, str]:
    """Return the names, by id, of the requests' keyspaces and tables, including dropped ones."""
    known = reading.names(requests)
    about = {each for r in requests for each in (r.keyspace_id, r.table_id) if each}
    gone = sorted(about - known.keys())
    names = HistoryNames()
    Gone(client, names).look_for([{"table_id": each} for each in gone], reading.epoch + 1)
    return known | {each: names.named(each) for each in gone}


def last_seen(client: Client, request_id: str, epoch: int) -> Request | None:
    """Return the last row of a request up to an epoch, from the history, or None."""
    asked = {"about": request_id, "facts": "RequestChanged", "before": epoch + 1, "limit": 1}
    found = ask(client, SERVICE, PATH, Slice, **asked)
    for fact in (fact for row in found.epochs for fact in row["facts"]) if found else ():
        if fact["type"] == "RequestChanged" and fact["request"]["request_id"] == request_id:
            return msgspec.convert(fact["request"], Request)
    return None


class Gone:
    """Looks up dropped names in the history and adds them to ``names``."""

    def __init__(self, client: Client, names: HistoryNames) -> None:
        self._client = client
        self._names = names
        self._looked_for = set[str]()

    def look_for(self, value: Any, epoch: int) -> None:
        """Look up the unknown names that facts of an epoch mention."""
        for id_ in self._names.lacking(value):
            if id_ in self._looked_for or len(self._looked_for) == MOST_LOOKED_FOR:
                continue
            self._looked_for.add(id_)
            fact = self._last_named(id_, epoch)
            if fact is not None:
                self.look_for(fact, epoch)  # a table is named with its keyspace
                self._names.learn(fact)

    def look_for_options(self, row: EpochRow) -> None:
        """Look up the options that a table had before this epoch alters them."""
        table_id = altered_table(row)
        fact = self._last_named(table_id, row.epoch) if table_id else None
        if fact is not None:
            self._names.learn_options(row.epoch, fact)

    def _last_named(self, id_: str, epoch: int) -> Fact | None:
        """Return the newest fact before this epoch that named the id."""
        asked = {"about": id_, "facts": SCHEMA, "before": epoch, "limit": 1}
        found = ask(self._client, SERVICE, PATH, Slice, **asked)
        facts = () if found is None else (fact for row in found.epochs for fact in row["facts"])
        return next((named for fact in facts for named in named_by(fact, id_)), None)


class HistoryWords:
    """Epochs as one line each, with short ids and names.

    The names at ``epoch`` are known from the start. Dropped names are looked up before the epoch
    that mentions them.
    """

    def __init__(self, client: Client, epoch: int) -> None:
        self._names = names_at(client, epoch)
        self._gone = Gone(client, self._names)
        self._ids = ShortIds()

    def summaries(self, rows: Sequence[EpochRow]) -> list[str]:
        """Return the summary of each epoch."""
        return self._ids.shortened([self._summary(row) for row in rows])

    def _summary(self, row: EpochRow) -> str:
        for fact in row.facts:
            self._names.learn(fact)
        self._gone.look_for(row.facts, row.epoch)
        self._gone.look_for_options(row)
        return summary(row, self._names)


PATH: Final = "/v1/epochs/search"
MOST_AT_ONCE: Final = 1000
"""Limit of epochs in one call; the metadata-log refuses more."""


class Slice(msgspec.Struct, frozen=True):
    """The fields of ``SearchAnswer``. Epochs stay as received, so that JSON shows all fields."""

    newest: int
    looked_at: int
    next_before: int
    epochs: tuple[dict[str, Any], ...]
    begins: int = 0
    stores: tuple[str, ...] = ()


def not_kept(begins: int, stores: tuple[str, ...]) -> str:
    """Return a readable note that older epochs were deleted; empty if all are kept."""
    if not begins:
        return ""
    where = f"; {joined(stores)} has older ones" if stores else ""
    return f"epochs up to {begins} were deleted from the archive{where}"


def slices(
    client: Client,
    asked: Mapping[str, object],
    count: int,
    before: int | None = None,
    is_shown: Callable[[dict[str, Any]], object] = bool,
) -> Iterator[Slice]:
    """Yield slices with ``count`` shown epochs in all, or fewer if there are no more.

    Raises CliError.
    """
    while count > 0 and before != 0:
        limit = min(count, MOST_AT_ONCE)
        part = client.get(SERVICE, PATH, Slice, **asked, before=before, limit=limit)
        yield part
        count -= sum(1 for epoch in part.epochs if is_shown(epoch))
        before = part.next_before


LEAST: Final = 13
"""Least length. In an id with a time these characters are the milliseconds, ``01a202f7-4959``."""
MOST_KNOWN: Final = 10_000
"""Limit of the ids that are kept, so that following the log for weeks needs bounded memory."""


class ShortIds:
    """Shortens each id to the length at which it differs from all earlier ids."""

    def __init__(self) -> None:
        self._known = list[str]()

    def shortened(self, texts: Sequence[str]) -> list[str]:
        """Return the texts with short ids that are distinct over all texts."""
        for text in texts:
            self._learn(text)
        return [ID.sub(lambda found: self._short(found[0]), text) for text in texts]

    def _learn(self, text: str) -> None:
        for found in ID.finditer(text):
            at = bisect_left(self._known, found[0])
            if self._known[at : at + 1] != [found[0]]:
                insort(self._known, found[0])
        if len(self._known) > MOST_KNOWN:
            self._known.clear()

    def _short(self, id_: str) -> str:
        at = bisect_left(self._known, id_)
        beside = (*self._known[max(0, at - 1) : at], *self._known[at + 1 : at + 2])
        length = max((_differs_at(id_, other) for other in beside), default=0) + 1
        return id_[: max(LEAST, length)]


def _differs_at(one: str, other: str) -> int:
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


class RequestHistory:
    """Follows one request through the epochs, in order."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._transitions = OpenTransitions()
        self._status = self._state = ""
        self._goes_back = False

    def step(self, row: EpochRow) -> str:
        """Return the step of the request after this epoch; empty before its first fact."""
        for fact in flat(row.facts):
            self._take(fact)
        if self._state:
            return f"{self._state}{' (being undone)' if self._goes_back else ''}"
        return self._status

    def _take(self, fact: Fact) -> None:
        kind, move = fact.get("type"), self._transitions.take(fact)
        if kind == "RequestChanged" and fact["request"]["request_id"] == self._request_id:
            self._status = fact["request"]["status"]
        if self._request_id not in move.request_ids:
            return
        if kind == "TransitionMarked":
            self._goes_back = True
        else:
            self._state = move.state
            self._goes_back = self._goes_back and kind != "TransitionOpened"


RECONNECT_WAIT_S: Final = 0.5
LASTING_S: Final = 5.0
"""Time after which an open stream counts as healthy, even without an epoch."""


def epochs_from(
    client: Client, first: int, give_up_after_s: float, state_id: str = ""
) -> Iterator[str]:
    """Yield the JSON of each epoch from ``first`` on, once and in order, with reconnects.

    ``state_id`` is that of the epoch before, if known. Raises UnreachableError when no instance
    streams for ``give_up_after_s``. Raises CliError when the log was recovered without the yielded
    epochs.
    """
    following, failing_since_s = first, float("inf")
    while True:
        opened_s = float("inf")
        why = UnreachableError(
            f"Streams end before epoch {following}.", "Is the metadata-log well? `stele status`."
        )
        try:
            headers = {"accept": "text/event-stream", "last-event-id": str(following - 1)}
            params = {"from": following, "state_id": state_id or None}
            with client.stream("metadata-log", "/v1/epochs", headers, **params) as lines:
                opened_s = time.monotonic()
                for number, data in events(lines):
                    if number > following:
                        break  # the epochs in between would be missing
                    if number == following:
                        failing_since_s = float("inf")
                        yield data
                        following += 1
                        state_id = decode(data.encode(), EpochRow).state_id
        except UnreachableError as error:
            why = error
        now_s = time.monotonic()
        if now_s - opened_s > LASTING_S:
            failing_since_s = float("inf")
        failing_since_s = min(failing_since_s, now_s)
        if now_s - failing_since_s > give_up_after_s:
            raise why
        time.sleep(RECONNECT_WAIT_S)


def events(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield (id, data) of each server-sent event that has both."""
    number, data = "", list[str]()
    for line in lines:
        if line.startswith("id:"):
            number = line[3:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line:
            if number.isdigit() and data:
                yield int(number), "\n".join(data)
            number, data = "", []
