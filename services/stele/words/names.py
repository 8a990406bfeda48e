"""Names for the ids in the history: of keyspaces and tables, and what each request asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import Keyspace, Table
from stele.words.requests import what

Fact = Mapping[str, Any]

ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class HistoryNames:
    """Grows with the facts that it is shown, in the order of the log."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._asked: dict[str, str] = {}

    def add(
        self, keyspaces: Iterable[Keyspace], tables: Iterable[Table], requests: Iterable[Request]
    ) -> None:
        """What a state knows; a table's keyspace may have come before."""
        self._names |= {keyspace.keyspace_id: keyspace.name for keyspace in keyspaces}
        for table in tables:
            keyspace = self._names.get(table.keyspace_id, table.keyspace_id)
            self._names[table.table_id] = f"{keyspace}.{table.name}"
        self._asked |= {request.request_id: what(request, self._names) for request in requests}

    def learn(self, fact: Fact) -> None:
        """Whatever the fact names. One that this build cannot read names nothing."""
        for part in fact.get("facts", ()):
            self.learn(part)
        try:
            match fact.get("type"):
                case "KeyspaceChanged":
                    self.add([msgspec.convert(fact["keyspace"], Keyspace)], (), ())
                case "TableChanged":
                    self.add((), [msgspec.convert(fact["table"], Table)], ())
                case "RequestChanged":
                    self.add((), (), [msgspec.convert(fact["request"], Request)])
        except msgspec.ValidationError:
            return

    def lacking(self, value: Any) -> list[str]:
        """Ids of keyspaces and tables that this speaks of and that have no name."""
        return [each for each in ids_in(value) if each not in self._names]

    def line(self, fact: Fact, words: str, reason: str) -> str:
        """The words of a fact with names for ids, and what is asked for where that is first said; ``reason`` is
        the epoch's.
        """
        match fact.get("type"):
            case "RequestChanged" if fact["request"]["status"] == RequestStatus.PENDING:
                own = fact["request"].get("reason", "")
                because = f", {own}" if own and own != reason else ""
                words = f"{words}: {self._asked.get(fact['request']['request_id'], '')}{because}"
            case "TransitionOpened":
                id_ = fact["transition"]["transition_id"]
                if id_ in self._asked and not fact["transition"]["subjects"]:
                    words = f"{self._asked[id_]} begins{words.partition(' begins')[2]}"
            case "TableChanged":
                table = fact["table"]
                full = self._names.get(table["table_id"], table["name"])
                words = words.replace(f"table {table['name']}", f"table {full}", 1)
        return self.named(words)

    def named(self, words: str) -> str:
        """With names for those ids that are known."""
        return ID.sub(lambda found: self._names.get(found[0], found[0]), words)


def ids_in(value: Any) -> Iterator[str]:
    """Of keyspaces and tables that facts speak of."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name in ("keyspace_id", "table_id") and isinstance(each, str) and each:
                yield each
            else:
                yield from ids_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from ids_in(each)


def named_by(fact: Fact, id_: str) -> Iterator[Fact]:
    """The fact, or those that it is a part with, that gives this keyspace or table its name."""
    for part in fact.get("facts", ()):
        yield from named_by(part, id_)
    for kind in ("keyspace", "table"):
        row = fact.get(kind)
        if isinstance(row, Mapping) and row.get(f"{kind}_id") == id_:
            yield fact
