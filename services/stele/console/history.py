"""Queries about the past: epochs in words, searches, diffs, decisions, and names of dropped objects."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from stele.console.caches import SharedQueries
from stele.console.difference import Difference, difference
from stele.console.epoch_text import EpochText, epoch_text, names_of
from stele.console.mirror import SERVICE, Mirror, facts_of, refused
from stele.console.schema_view import SchemaDifference, schema_difference
from stele.console.timeline import READ, Timeline, earliest, timeline
from stele.console.upstream import AwayError, Upstream
from stele.domain.base import Fact
from stele.domain.image import Image
from stele.domain.model.ring import PlacementChanged
from stele.domain.staging import with_those_inside
from stele.runtime.http import HttpError
from stele.runtime.transport import HttpReply
from stele.words.decisions import FACTS, BalancerDecision, DecisionHistory, Wanted
from stele.words.facts import EpochRow, altered_table, fact_lines
from stele.words.names import HistoryNames, ids_in

MOST_KEPT: Final = 10_000
MOST_ASKED: Final = 20
"""Limit of lookups for one answer. For ids beyond it, the ids themselves are shown."""
AWAY_S: Final = 5.0
"""Pause of all lookups after a metadata-log did not answer."""
SCHEMA: Final = "KeyspaceChanged,TableChanged"

Find = Callable[[dict[str, object]], Awaitable[dict[str, Any] | None]]
"""Finds the newest fact of the given kinds. Returns None when there is none."""


class DroppedNames:
    """Keeps, by id, the fact that named it last. None means that no epoch names it.

    ``find`` raises HttpError or AwayError.
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._facts: dict[str, dict[str, Any] | None] = {}
        self._away_until_s = 0.0

    async def names(self, image: Image, rows: Iterable[EpochRow]) -> HistoryNames:
        """Return names for ``rows``: those of ``image``, and those of dropped ids in the rows."""
        found = [*rows]
        names = await self._names(image, [each for row in found for each in ids_in(row.facts)])
        names.add((), (), image.requests.requests.values())
        for row in sorted(found, key=lambda each: each.epoch):
            # A page shows the newest epoch first, and its facts may name an older epoch's request.
            for each in row.facts:
                names.learn(each)
            table_id = altered_table(row)
            asked: dict[str, object] = {"about": table_id, "facts": "TableChanged"}
            fact = await self._named({**asked, "before": row.epoch}) if table_id else None
            if fact is not None:
                names.learn_options(row.epoch, fact)
        return names

    async def of_requests(self, image: Image) -> dict[str, str]:
        """Return the names of dropped keyspaces and tables in the image's requests, by id.

        An id whose name cannot be found now maps to itself.
        """
        found = image.requests.requests.values()
        ids = [each for r in found for each in (r.keyspace_id, r.table_id) if each]
        names = await self._names(image, ids)
        return {each: names.named(each) for each in ids}

    async def _names(self, image: Image, ids: Iterable[str]) -> HistoryNames:
        schema, wanted, asked = image.schema, [*ids], 0
        while wanted and asked < MOST_ASKED and time.monotonic() > self._away_until_s:
            id_ = wanted.pop()
            if id_ in self._facts or id_ in schema.by_id or id_ in schema.tables:
                continue
            asked += 1
            try:
                fact = await self._find({"about": id_, "facts": SCHEMA})
            except (HttpError, AwayError):
                # The metadata-log is away: ask for no other id either, so that pages do not wait
                # for each.
                self._away_until_s = time.monotonic() + AWAY_S
                break
            self._facts[id_] = fact
            wanted += ids_in(fact)
        while len(self._facts) > MOST_KEPT:
            del self._facts[next(iter(self._facts))]
        names = names_of(image)
        for kind in ("keyspace", "table"):  # a table is named with its keyspace
            for fact in self._facts.values():
                if fact is not None and kind in fact:
                    names.learn(fact)
        return names

    async def id_of(self, image: Image, name: str) -> str:
        """Return the term to search for: ``name`` while it exists, else the id that last had it."""
        schema = image.schema
        keyspace, _, table = name.partition(".")
        if schema.named(name) or schema.table_named(name) or name in image.membership.nodes:
            return name
        fact = await self._named({"about": keyspace, "facts": "KeyspaceChanged"})
        if fact is None or fact["keyspace"]["name"] != keyspace:
            return name
        keyspace_id: str = fact["keyspace"]["keyspace_id"]
        if not table:
            return keyspace_id
        asked: dict[str, object] = {"about": keyspace_id, "facts": "TableChanged", "text": table}
        fact = await self._named(asked)
        return str(fact["table"]["table_id"]) if fact and fact["table"]["name"] == table else name

    async def _named(self, asked: dict[str, object]) -> dict[str, Any] | None:
        try:
            return await self._find(asked)
        except (HttpError, AwayError):
            return None


MOST_EARLIER: Final = 2000
"""Limit of the epochs that a page of the time line starts earlier."""
MOST_LOOKED_AT: Final = 5000
"""Limit of the epochs that one query for decisions reads."""
AT_ONCE: Final = 1000
AT_ONE_LOOK: Final = 200
"""Limit of epochs that one query for a range reads. They changed the placement; those that changed
the range are shown."""
MOST_SLICES: Final = 50
"""Limit of the slices of the history that are searched for a name."""


class HistoryPage(msgspec.Struct, frozen=True):
    """Epochs in words, the newest first.

    ``next_before`` is where the next page starts; 0 means that there is none.
    """

    newest: int
    epochs: tuple[EpochText, ...]
    next_before: int = 0
    looked_at: int = 0
    begins: int = 0


class WholeEpoch(msgspec.Struct, frozen=True):
    """One epoch with all of its lines, and its facts as JSON."""

    told: EpochText
    lines: tuple[str, ...]
    facts: tuple[dict[str, Any], ...]


class Decisions(msgspec.Struct, frozen=True):
    """Decisions, the newest first. The search went back to epoch ``looked_back_to``."""

    decisions: tuple[BalancerDecision, ...]
    looked_back_to: int


class _Found(msgspec.Struct, frozen=True):
    newest: int
    looked_at: int
    next_before: int
    epochs: tuple[EpochRow, ...]
    begins: int = 0


class HistoryQueries:
    """Queries the metadata-log. Pages share each answer until the next epoch.

    The words are those of the command line.
    """

    def __init__(self, upstream: Upstream, mirror: Mirror) -> None:
        self._upstream = upstream
        self._mirror = mirror
        self._shared = SharedQueries()
        self._dropped = DroppedNames(self._first_fact)

    async def page(self, before: int, limit: int) -> HistoryPage:
        """Return up to ``limit`` epochs before ``before``, the newest first.

        0 starts at the newest epoch. Raises HttpError, AwayError.
        """
        newest, begins, first, count = self._window(before, limit)
        rows = await self._rows({"from": first, "limit": count}) if count > 0 else []
        epochs = await self._in_words(rows)
        more = first if first > begins else 0
        return HistoryPage(newest, epochs[::-1], more, len(rows), begins)

    def _window(self, before: int, limit: int) -> tuple[int, int, int, int]:
        """Return the newest epoch, the first one that is kept, and the window to read.

        The window is its first epoch and the number of its epochs, up to ``limit`` before
        ``before``, or to the newest for 0. The number is not positive if there are none.
        """
        image = self._mirror.newest()
        newest, begins = image.epoch, image.archive.trimmed_epoch + 1
        last = min(newest, before - 1) if before else newest
        first = max(begins, last - limit + 1)
        return newest, begins, first, last - first + 1

    async def _in_words(self, rows: Sequence[EpochRow]) -> tuple[EpochText, ...]:
        names = await self._dropped.names(self._mirror.image, rows)
        return tuple(epoch_text(row, names) for row in rows)

    async def whole(self, epoch: int) -> WholeEpoch:
        """Return one epoch with all lines. Raises HttpError, AwayError."""
        row = msgspec.json.decode(await self._get(f"/v1/epochs/{epoch}", {}), type=EpochRow)
        names = await self._dropped.names(self._mirror.image, [row])
        return WholeEpoch(epoch_text(row, names), tuple(fact_lines(row, names)), row.facts)

    async def dropped_names(self, image: Image) -> dict[str, str]:
        """Return the names of dropped keyspaces and tables in the image's requests, by id."""
        return await self._dropped.of_requests(image)

    async def search(self, asked: dict[str, object]) -> HistoryPage:
        """Return the epochs that match ``asked``; ``about`` may name a dropped keyspace or table.

        Raises HttpError, AwayError.
        """
        if asked.get("about"):
            known = await self._dropped.id_of(self._mirror.image, str(asked["about"]))
            asked = {**asked, "about": known}
        found = msgspec.json.decode(await self._get("/v1/epochs/search", asked), type=_Found)
        return await self._page(found, found.epochs)

    async def _page(self, found: _Found, rows: Sequence[EpochRow]) -> HistoryPage:
        """Return those epochs of a search that are in ``rows``."""
        epochs, begins = await self._in_words(rows), found.begins + 1
        return HistoryPage(found.newest, epochs, found.next_before, found.looked_at, begins)

    async def of_range(self, placement: str, start: int, end: int, before: int) -> HistoryPage:
        """Return epochs that changed the replicas of a range, the newest first.

        One call searches AT_ONE_LOOK epochs of the placement. Raises HttpError, AwayError.
        """
        asked: dict[str, object] = {
            "about": placement,
            "facts": "PlacementChanged",
            "limit": AT_ONE_LOOK,
        }
        if before:
            asked["before"] = before
        body = await self._get("/v1/epochs/search", asked)
        found = msgspec.json.decode(body, type=_Found)
        rows = [
            row
            for row, facts in zip(
                found.epochs, await asyncio.to_thread(facts_of, body), strict=True
            )
            if any(touches(fact, placement, start, end) for fact in with_those_inside(facts))
        ]
        return await self._page(found, rows)

    async def at_moment(self, at_ms: int) -> int:
        """Return the newest epoch at a time (ms since 1970); 0: none.

        Raises HttpError, AwayError.
        """
        before: int | None = None
        while before != 0:
            asked: dict[str, object] = {"until_ms": at_ms, "limit": 1}
            if before is not None:
                asked["before"] = before
            found = await self.search(asked)
            if found.epochs:
                return found.epochs[0].epoch
            before = found.next_before
        return 0

    async def timeline(self, before: int, limit: int) -> Timeline:
        """Return the operations and changes of up to ``limit`` epochs before ``before``.

        0 starts at the newest epoch. The page starts earlier if an operation in it does. Raises
        HttpError, AwayError.
        """
        newest, begins, first, count = self._window(before, limit)
        if count <= 0:
            raise HttpError(404, "epoch_not_found", f"There is no epoch before {before}.")
        rows = await self._rows({"from": first, "limit": count, "facts": READ})
        start = max(begins, earliest(rows) or first, first - MOST_EARLIER)
        if start < first:
            asked = {"from": start, "limit": first - start, "facts": READ}
            rows = [*await self._rows(asked), *rows]
        names = await self._dropped.names(self._mirror.image, rows)
        return await asyncio.to_thread(timeline, rows, names, newest, begins)

    async def diff(self, first: int, last: int) -> Difference:
        """Return the difference between two epochs. Raises HttpError, AwayError."""
        before, after = await self._mirror.at(first), await self._mirror.at(last)
        return await asyncio.to_thread(difference, before, after)

    async def schema_diff(self, first: int, last: int) -> SchemaDifference:
        """Return the changed schema objects between two epochs. Raises HttpError, AwayError."""
        before, after = await self._mirror.at(first), await self._mirror.at(last)
        return await asyncio.to_thread(schema_difference, before, after)

    async def decisions(self, wanted: Wanted, limit: int, before: int) -> Decisions:
        """Return up to ``limit`` decisions about tablets before an epoch.

        Raises HttpError, AwayError.
        """
        image = self._mirror.newest()
        past, found = DecisionHistory(wanted, image.schema.names_by_id()), list[BalancerDecision]()
        end = before or image.epoch + 1
        least = max(image.archive.trimmed_epoch + 1, end - MOST_LOOKED_AT)
        while end > least and len(found) < limit:
            first = max(least, end - AT_ONCE)
            asked = {"from": first, "limit": end - first, "facts": ",".join(FACTS)}
            for row in reversed(await self._rows(asked)):
                found += past.add(row)
            end = first
        return Decisions(tuple(found[:limit]), end)

    async def _first_fact(self, asked: dict[str, object]) -> dict[str, Any] | None:
        """Return the newest fact of the kinds in ``asked``. Raises HttpError, AwayError."""
        kinds, before = str(asked["facts"]).split(","), 0
        for _ in range(MOST_SLICES):
            more = {"before": before} if before else {}
            data = await self._get("/v1/epochs/search", {**asked, **more, "limit": 1})
            found = msgspec.json.decode(data, type=_Found)
            for row in found.epochs:
                for fact in row.facts:
                    if fact.get("type") in kinds and asked["about"] in (*_texts(fact),):
                        return fact
            before = found.next_before
            if not before:
                break
        return None

    async def _rows(self, asked: dict[str, Any]) -> list[EpochRow]:
        rows = msgspec.json.decode(await self._get("/v1/epochs", asked), type=list[EpochRow])
        last = asked["from"] + asked["limit"] - 1
        while rows and rows[-1].epoch < last:
            more = {**asked, "from": rows[-1].epoch + 1, "limit": last - rows[-1].epoch}
            part = msgspec.json.decode(await self._get("/v1/epochs", more), type=list[EpochRow])
            if not part:
                break
            rows += part
        return rows

    async def _get(self, path: str, params: dict[str, Any]) -> bytes:
        async def ask() -> bytes:
            asked = {**params, **self._mirror.of_this_log()}
            answer: HttpReply = await self._upstream.ask(SERVICE, path, asked)
            if not answer.ok:
                raise refused(answer)
            return answer.body

        # The state id is part of the key: an answer is shared until the next epoch, and never
        # across two histories.
        key = (self._mirror.image.state_id, path, *sorted((k, str(v)) for k, v in params.items()))
        return await self._shared.get(key, ask)


def touches(fact: Fact, placement: str, start: int, end: int) -> bool:
    """Return True if a fact changed a row of the placement that meets (start, end]."""
    if not isinstance(fact, PlacementChanged) or fact.placement != placement:
        return False
    starts, ends = fact.added.starts.numbers(), fact.added.ends.numbers()
    last = np.array([end]) - 1  # the ring's end is its least token: one less is the greatest
    return bool(((starts <= last) & (start <= ends - 1)).any())


def _texts(fact: dict[str, Any]) -> Iterator[str]:
    """Yield the names and ids of a keyspace or table in a fact."""
    for kind in ("keyspace", "table"):
        row = fact.get(kind) or {}
        yield from (str(row[name]) for name in ("name", f"{kind}_id", "keyspace_id") if name in row)
