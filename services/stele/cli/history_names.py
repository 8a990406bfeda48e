"""The history in words, with names for its ids as the metadata-log tells them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.history_search import PATH, Slice
from stele.cli.optional import ask
from stele.cli.reading import SERVICE, Reading
from stele.cli.short_ids import ShortIds
from stele.domain.requests.facts import Request
from stele.words.facts import EpochRow, summary
from stele.words.names import Fact, HistoryNames, named_by

SCHEMA: Final = "KeyspaceChanged,TableChanged"
MOST_LOOKED_FOR: Final = 20
"""Names of what is no more, each by a call; of the others the ids are shown."""


def names_at(client: Client, *epochs: int) -> HistoryNames:
    """All names as they were at these epochs; none where a state cannot be had."""
    found = HistoryNames()
    for epoch in epochs:
        if epoch < 1:
            continue
        reading = Reading(client, epoch, "local")
        with suppress(CliError):
            found.add(reading.keyspaces(), reading.tables(), reading.requests(unfinished="true"))
    return found


def names_of(client: Client, reading: Reading, requests: Sequence[Request]) -> dict[str, str]:
    """By id, of the keyspaces and tables that requests are about, also of those that are no more."""
    known = reading.names(requests)
    about = {each for r in requests for each in (r.keyspace_id, r.table_id) if each}
    gone = sorted(about - known.keys())
    names = HistoryNames()
    Gone(client, names).look_for([{"table_id": each} for each in gone], reading.epoch + 1)
    return known | {each: names.named(each) for each in gone}


class Gone:
    """Finds out what had which id, and adds it to ``names``."""

    def __init__(self, client: Client, names: HistoryNames) -> None:
        self._client = client
        self._names = names
        self._looked_for = set[str]()

    def look_for(self, value: Any, epoch: int) -> None:
        """The names that facts of an epoch speak of and nobody has told yet."""
        for id_ in self._names.lacking(value):
            if id_ in self._looked_for or len(self._looked_for) == MOST_LOOKED_FOR:
                continue
            self._looked_for.add(id_)
            fact = self._last_named(id_, epoch)
            if fact is not None:
                self.look_for(fact, epoch)  # a table is named with its keyspace
                self._names.learn(fact)

    def _last_named(self, id_: str, epoch: int) -> Fact | None:
        """The fact that named it last, in the slice of the history before this epoch."""
        asked = {"about": id_, "facts": SCHEMA, "before": epoch, "limit": 1}
        found = ask(self._client, SERVICE, PATH, Slice, **asked)
        facts = () if found is None else (fact for row in found.epochs for fact in row["facts"])
        return next((named for fact in facts for named in named_by(fact, id_)), None)


class HistoryWords:
    """Epochs on a line each: ids are short, and names stand for them; those of the state at ``epoch`` are known
    from the beginning, and what was dropped is looked for before the epoch that speaks of it.
    """

    def __init__(self, client: Client, epoch: int) -> None:
        self._names = names_at(client, epoch)
        self._gone = Gone(client, self._names)
        self._ids = ShortIds()

    def summaries(self, rows: Sequence[EpochRow]) -> list[str]:
        """What became true in each."""
        return self._ids.shortened([self._summary(row) for row in rows])

    def _summary(self, row: EpochRow) -> str:
        for fact in row.facts:
            self._names.learn(fact)
        self._gone.look_for(row.facts, row.epoch)
        return summary(row, self._names)
