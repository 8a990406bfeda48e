"""Questions about the past: epochs in words, searches, differences, what was decided about a table."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from stele.console.epochs import searched
from stele.console.gone import Gone
from stele.console.mirror import SERVICE, Mirror, refused
from stele.console.shared import Shared
from stele.console.shown import names_by_id
from stele.console.told import EpochInWords, names_of, row_of, told
from stele.console.upstream import Answered, Upstream
from stele.domain.base import Fact
from stele.domain.image import Image
from stele.domain.ring.facts import PlacementChanged
from stele.domain.staging.image import with_those_inside
from stele.domain.view import diff
from stele.words.decisions import FACTS, Decision, Past, Wanted
from stele.words.facts import EpochRow, fact_lines
from stele.words.state_diff import diff_lines

MOST_LINES: Final = 2000
"""Lines of a difference that are shown."""
MOST_LOOKED_AT: Final = 5000
"""Epochs that are looked through for decisions at one time."""
AT_ONCE: Final = 1000
AT_ONE_LOOK: Final = 200
"""Epochs that changed a placement, of which those are told that changed a range."""
MOST_SLICES: Final = 50
"""Slices of the history in which a name is looked for."""


class Page(msgspec.Struct, frozen=True):
    """Epochs in words, the newest first; ``next_before`` goes on, 0: that was all."""

    newest: int
    epochs: tuple[EpochInWords, ...]
    next_before: int = 0
    looked_at: int = 0
    begins: int = 0


class WholeEpoch(msgspec.Struct, frozen=True):
    """One epoch with all lines, and its facts as they are."""

    told: EpochInWords
    lines: tuple[str, ...]
    facts: tuple[dict[str, Any], ...]


class DiffShown(msgspec.Struct, frozen=True):
    """Signed lines; ``more`` says how many were left out."""

    before: int
    after: int
    lines: tuple[tuple[str, str], ...]
    more: int


class Decisions(msgspec.Struct, frozen=True):
    """What was decided, the newest first, looked for back to an epoch."""

    decisions: tuple[Decision, ...]
    looked_back_to: int


class _Found(msgspec.Struct, frozen=True):
    newest: int
    looked_at: int
    next_before: int
    epochs: tuple[EpochRow, ...]
    begins: int = 0


class History:
    """Asks metadata-log, once an epoch for all pages; the words are the command line's."""

    def __init__(self, upstream: Upstream, mirror: Mirror) -> None:
        self._upstream = upstream
        self._mirror = mirror
        self._shared = Shared()
        self._gone = Gone(self._first_fact)

    async def page(self, before: int, limit: int) -> Page:
        """Epochs before this one, the newest first; 0: the newest there are. Raises HttpError, AwayError."""
        image = self._mirror.newest()
        newest, begins = image.epoch, image.archive.trimmed_epoch + 1
        last = min(newest, before - 1) if before else newest
        first = max(begins, last - limit + 1)
        if last < first:
            return Page(newest, (), begins=begins)
        rows = await self._rows({"from": first, "limit": last - first + 1})
        names = await self._gone.names(self._mirror.image, rows)
        epochs = tuple(told(row, names) for row in rows)
        return Page(newest, epochs[::-1], first if first > begins else 0, len(rows), begins)

    async def whole(self, epoch: int) -> WholeEpoch:
        """One epoch. Raises HttpError, AwayError."""
        row = msgspec.json.decode(await self._get(f"/v1/epochs/{epoch}", {}), type=EpochRow)
        names = await self._gone.names(self._mirror.image, [row])
        return WholeEpoch(told(row, names), tuple(fact_lines(row, names)), row.facts)

    async def gone(self, image: Image) -> dict[str, str]:
        """By id what requests are about that stands no more."""
        return await self._gone.of_requests(image)

    async def search(self, asked: dict[str, object]) -> Page:
        """Epochs that are asked for; ``about`` may name what is no more. Raises HttpError, AwayError."""
        if asked.get("about"):
            known = await self._gone.id_of(self._mirror.image, str(asked["about"]))
            asked = {**asked, "about": known}
        found = msgspec.json.decode(await self._get("/v1/epochs/search", asked), type=_Found)
        names = await self._gone.names(self._mirror.image, found.epochs)
        epochs = tuple(told(row, names) for row in found.epochs)
        return Page(found.newest, epochs, found.next_before, found.looked_at, found.begins)

    async def of_range(self, placement: str, start: int, end: int, before: int) -> Page:
        """Epochs that changed who has a range, the newest first, of one look. Raises HttpError, AwayError."""
        asked: dict[str, object] = {
            "about": placement,
            "facts": "PlacementChanged",
            "limit": AT_ONE_LOOK,
        }
        if before:
            asked["before"] = before
        body = await self._get("/v1/epochs/search", asked)
        found = await asyncio.to_thread(searched, body)
        rows = [
            row_of(epoch)
            for epoch in found.epochs
            if any(touches(fact, placement, start, end) for fact in with_those_inside(epoch.facts))
        ]
        names = await self._gone.names(self._mirror.image, rows)
        epochs = tuple(told(row, names) for row in rows)
        return Page(found.newest, epochs, found.next_before, found.looked_at, found.begins + 1)

    async def at_moment(self, at_ms: int) -> int:
        """The newest epoch that was there at a moment; 0: none. Raises HttpError, AwayError."""
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

    async def diff(self, first: int, last: int) -> DiffShown:
        """What differs between two epochs. Raises HttpError, AwayError."""
        before, after = await self._mirror.at(first), await self._mirror.at(last)
        names = names_of(before, after)

        def named() -> list[tuple[str, str]]:
            found = diff_lines(_plain(diff(before, after)))
            return [(sign, names.named(line)) for sign, line in found]

        lines = await asyncio.to_thread(named)
        return DiffShown(first, last, tuple(lines[:MOST_LINES]), max(0, len(lines) - MOST_LINES))

    async def decisions(self, wanted: Wanted, limit: int, before: int) -> Decisions:
        """What was asked for of tablets. Raises HttpError, AwayError."""
        image = self._mirror.newest()
        past, found = Past(wanted, names_by_id(image)), list[Decision]()
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
        """The newest of these kinds. Raises HttpError, AwayError."""
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
            answer: Answered = await self._upstream.ask(SERVICE, path, asked)
            if not answer.ok:
                raise refused(answer)
            return answer.body

        key = (self._mirror.image.state_id, path, *sorted((k, str(v)) for k, v in params.items()))
        return await self._shared.get(key, ask)


def touches(fact: Fact, placement: str, start: int, end: int) -> bool:
    """Whether a fact changed a row of this placement that shares a token with (start, end]."""
    if not isinstance(fact, PlacementChanged) or fact.placement != placement:
        return False
    starts, ends = fact.added.starts.numbers(), fact.added.ends.numbers()
    last = np.array([end]) - 1  # the ring's end is its least token: one less is the greatest
    return bool(((starts <= last) & (start <= ends - 1)).any())


def _texts(fact: dict[str, Any]) -> Iterator[str]:
    """Names and ids of a keyspace or table."""
    for kind in ("keyspace", "table"):
        row = fact.get(kind) or {}
        yield from (str(row[name]) for name in ("name", f"{kind}_id", "keyspace_id") if name in row)


def _plain(found: Any) -> Any:
    """As it comes over HTTP."""
    return msgspec.json.decode(msgspec.json.encode(found))
