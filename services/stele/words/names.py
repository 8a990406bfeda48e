"""Names for the ids in the history: keyspaces, tables, and the subjects of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Keyspace, Table, TableOptions
from stele.domain.names import NodeState, RequestStatus

# Words for requests.


def what(request: Request, names: Mapping[str, str]) -> str:
    """Return the subject: ``join n4``, ``replace n3 by n5``, ``keyspace_rf_change library to
    dc1=3``.

    ``names`` are of keyspaces and tables, by their ids.
    """
    if request.replaced_id:
        return f"{request.kind} {request.replaced_id} by {request.node_id}"
    about = request.node_id or _data(request, names) or ", ".join(request.dead_nodes)
    if request.reconfigures:
        return f"{request.kind} to {request.archive_replication}"
    if request.replication:
        about = f"{about} to {request.wanted.words()}"
    about = about or ", ".join(request.features)
    return f"{request.kind} {about}".rstrip()


def _data(request: Request, names: Mapping[str, str]) -> str:
    id_ = request.table_id or request.keyspace_id
    name = names.get(id_, id_)
    if request.resizes:
        before = f" from {request.tablet_count_before}" if request.tablet_count_before else ""
        return f"{name}{before} to {request.tablet_count}"
    if request.repairs:
        tablet = f"of {name} tablet {request.tablet}" if request.repairs_tablet else name
        return f"{tablet}{request.among.words()}"
    if request.tag:
        tablet = f" tablet {request.tablet}" if request.restores_tablet else ""
        return f"{name}{tablet} {'from' if request.restore_id else 'as'} {request.tag}"
    if not request.moves_replica:
        return name
    return f"of {name} tablet {request.tablet}{request.ways()}"


# Words for how nodes left the cluster.


def departure(node: Node, request: Request | None) -> str:
    """Return how a node left: ``left``, ``removed``, ``replaced by n5``, ``never joined``.

    ``request`` is the node's last request, or None if it is no longer known. The text is empty for
    a node that has not left.
    """
    if node.state is not NodeState.LEFT:
        return ""
    if request is None:
        return "left"
    if request.replaced_id == node.node_id:
        return f"replaced by {request.node_id}"
    if request.removes_node:
        # Only `remove` names the node as dead; `decommission` is carried out by the node itself.
        return "removed" if node.node_id in request.dead_nodes else "left"
    return "left" if request.status is RequestStatus.DONE else "never joined"


# Words for options of tables.


NOT_SET: Final = "not set"


def set_options(options: TableOptions) -> str:
    """Return the options that are set: ``min_tablet_count 4, auto_repair_enabled on``."""
    found = msgspec.structs.asdict(options)
    return ", ".join(f"{name} {value}" for name, value in found.items() if value)


def option_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the changes: ``min_tablet_count 4 -> 8, max_tablet_count 16 -> not set``."""
    return ", ".join(
        f"{name} {before.get(name) or NOT_SET} -> {after.get(name) or NOT_SET}"
        for name in {**after, **before}
        if (before.get(name) or 0) != (after.get(name) or 0)
    )


Fact = Mapping[str, Any]

ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class HistoryNames:
    """Names by id. It learns from facts, which it must receive in log order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._asked: dict[str, str] = {}
        self._options_before: dict[int, Mapping[str, Any]] = {}

    def add(
        self, keyspaces: Iterable[Keyspace], tables: Iterable[Table], requests: Iterable[Request]
    ) -> None:
        """Add the names of a state. The keyspace of a table may have been added before."""
        self._names |= {keyspace.keyspace_id: keyspace.name for keyspace in keyspaces}
        for table in tables:
            keyspace = self._names.get(table.keyspace_id, table.keyspace_id)
            self._names[table.table_id] = f"{keyspace}.{table.name}"
        self._asked |= {request.request_id: what(request, self._names) for request in requests}

    def learn(self, fact: Fact) -> None:
        """Add the names in a fact. A fact that this build cannot read adds none."""
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
                case "TransitionOpened":
                    transition = fact["transition"]
                    ids = [subject["request_id"] for subject in transition["subjects"]]
                    self.add_transition(transition["transition_id"], ids)
        except msgspec.ValidationError:
            return

    def add_transition(self, transition_id: str, request_ids: Iterable[str]) -> None:
        """Add a transition, which is named by the requests that it carries out."""
        known = [what for each in request_ids if (what := self.operation(each))]
        if known:
            self._asked[transition_id] = ", ".join(known)

    def operation(self, id_: str) -> str:
        """Return the subject of a request or transition, such as ``join n4``; empty: unknown."""
        return self._asked.get(id_, "")

    def learn_options(self, epoch: int, before: Fact) -> None:
        """Keep the table's fact from before ``epoch``, which alters the options of that table."""
        self._options_before[epoch] = before["table"].get("options", {})

    def lacking(self, value: Any) -> list[str]:
        """Return the ids of keyspaces and tables in ``value`` that have no name yet."""
        return [each for each in ids_in(value) if each not in self._names]

    def line(self, fact: Fact, words: str, reason: str, epoch: int = 0) -> str:
        """Return the words of a fact with names for ids.

        The first fact of a request also states its subject. ``reason`` is that of ``epoch``.
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
                before = self._options_before.get(epoch)
                if before is not None:
                    return f"table {full}: {option_changes(before, table.get('options', {}))}"
                words = words.replace(f"table {table['name']}", f"table {full}", 1)
        return self.named(words)

    def named(self, words: str) -> str:
        """Replace the known ids in ``words`` by their names."""
        return ID.sub(lambda found: self._names.get(found[0], found[0]), words)


def ids_in(value: Any) -> Iterator[str]:
    """Yield the ids of keyspaces and tables in facts."""
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
    """Yield the facts that name this keyspace or table: ``fact`` itself or the facts in a part."""
    for part in fact.get("facts", ()):
        yield from named_by(part, id_)
    for kind in ("keyspace", "table"):
        row = fact.get(kind)
        if isinstance(row, Mapping) and row.get(f"{kind}_id") == id_:
            yield fact
