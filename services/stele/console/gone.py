"""Names of keyspaces and tables that are no more: the log has them where they were made."""

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from stele.console.told import names_of
from stele.console.upstream import AwayError
from stele.domain.image import Image
from stele.runtime.http import HttpError
from stele.words.facts import EpochRow
from stele.words.names import HistoryNames, ids_in

MOST_KEPT: Final = 10_000
MOST_ASKED: Final = 20
"""So many names are looked for on behalf of one answer; of the others the ids are shown."""
AWAY_S: Final = 5.0
"""So long nobody is asked again who did not answer."""
SCHEMA: Final = "KeyspaceChanged,TableChanged"

Find = Callable[[dict[str, object]], Awaitable[dict[str, Any] | None]]
"""The fact of these kinds that a search meets first, the newest; None: there is none."""


class Gone:
    """By id the fact that named it last; None: no epoch does. ``find`` raises HttpError, AwayError."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._facts: dict[str, dict[str, Any] | None] = {}
        self._away_until_s = 0.0

    async def names(self, image: Image, rows: Iterable[EpochRow]) -> HistoryNames:
        """For the words of these epochs: what stands, and what they speak of that does not stand any more."""
        return await self._names(image, [each for row in rows for each in ids_in(row.facts)])

    async def of_requests(self, image: Image) -> dict[str, str]:
        """By id what requests are about that stands no more, as far as that can be known now."""
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
        """By what to look for a keyspace or table: its name while it stands, else the id that it had last."""
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
