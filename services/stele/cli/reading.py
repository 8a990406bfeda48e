"""Reads of one state in pages: the first answer fixes the epoch of all that follow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.domain.membership.facts import Node
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import Balancing, Keyspace, Table
from stele.domain.services.facts import Service
from stele.domain.table_snapshots.facts import TableSnapshot
from stele.runtime.answers.metadata_log import (
    CatchUpAnswer,
    KeyspacesPage,
    NodesPage,
    Page,
    PlacementsPage,
    RepairsPage,
    RequestAnswer,
    RequestsPage,
    ServicesPage,
    SettingsPage,
    TableSnapshotsPage,
    TablesPage,
    TopologyAnswer,
)

P = TypeVar("P", bound=Page)
T = TypeVar("T")
Level = Literal["local", "barrier", "linearizable"]

SERVICE = "metadata-log"
MOST_ALIKE = 3
"""So many requests are named whose ids begin alike."""
EPOCHS_IN_ANSWER = 1000
"""At most: the metadata-log refuses to be asked for more."""


def as_counted(name: str) -> list[str | int]:
    """A key to sort names by, in which numbers are numbers: text and numbers take turns."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def read_epochs(
    client: Client, first: int, count: int, kind: type[list[T]], facts: Iterable[str] = ()
) -> list[T]:
    """Up to ``count`` epochs from ``first`` on, with all facts or those of these names. Raises CliError.

    An answer may hold fewer than asked for.
    """
    found: list[T] = []
    only = ",".join(facts) or None
    while len(found) < count:
        limit = min(count - len(found), EPOCHS_IN_ANSWER)
        params = {"from": first + len(found), "limit": limit, "facts": only}
        part = client.get(SERVICE, "/v1/epochs", kind, **params)
        if not part:
            break
        found.extend(part)
    return found


class NoRequestError(CliError):
    """No request of the state has an id that begins so."""


class Reading:
    """One state of the cluster: at ``epoch``, or at the newest that ``level`` gives."""

    def __init__(self, client: Client, epoch: int | None = None, level: Level = "barrier") -> None:
        self._client = client
        self._level = level
        self._epoch = epoch
        self.state_id = ""
        self.since = (0, 0)
        """The epoch, and its time in milliseconds, after which no request that ended was forgotten."""
        self.balancing = Balancing()
        """That of the cluster; known once keyspaces were read."""

    @property
    def epoch(self) -> int:
        """The epoch that is read; known once something was."""
        assert self._epoch is not None
        return self._epoch

    def topology(self) -> TopologyAnswer:
        answer = self._client.get(SERVICE, "/v1/topology", TopologyAnswer, **self._at())
        self._fix(answer.epoch, answer.state_id)
        return answer

    def nodes(self) -> list[Node]:
        """As people count: n2 before n10."""
        found = [node for page in self.pages("/v1/nodes", NodesPage) for node in page.nodes]
        return sorted(found, key=lambda node: as_counted(node.node_id))

    def services(self) -> list[Service]:
        pages = self.pages("/v1/services", ServicesPage)
        return [service for page in pages for service in page.services]

    def features(self) -> tuple[str, ...]:
        """Those that are enabled."""
        return next(self.pages("/v1/settings", SettingsPage)).features

    def settings(self) -> dict[str, str]:
        """Those that are set, by name."""
        pages = self.pages("/v1/settings", SettingsPage)
        return {name: value for page in pages for name, value in page.settings.items()}

    def requests(self, **filters: str | None) -> list[Request]:
        """Topology requests, first come first."""
        found = list[Request]()
        for page in self.pages("/v1/requests", RequestsPage, **filters):
            self.since = (page.since_epoch, page.since_ms)
            found += page.requests
        return sorted(found, key=lambda r: (r.submitted_epoch, r.request_id))

    def repairs(self, table: str, tablet: int | None = None) -> list[int]:
        """When each tablet of a table, or this one, was repaired last, milliseconds; 0: never."""
        pages = self.pages("/v1/repairs", RepairsPage, table=table, tablet=tablet)
        return [each.repaired_ms for page in pages for each in page.repairs]

    def table_snapshots(self) -> list[TableSnapshot]:
        pages = self.pages("/v1/table_snapshots", TableSnapshotsPage)
        return [snapshot for page in pages for snapshot in page.table_snapshots]

    def catch_up(self) -> CatchUpAnswer:
        """The archive of the log."""
        answer = self._client.get(SERVICE, "/v1/catch_up", CatchUpAnswer, **self._at())
        self._fix(answer.epoch, answer.state_id)
        return answer

    def request(self, request_id: str) -> RequestAnswer:
        """Raises CliError when there is none."""
        answer = self._client.get(
            SERVICE, f"/v1/requests/{request_id}", RequestAnswer, **self._at()
        )
        self._fix(answer.epoch, answer.state_id)
        return answer

    def find(self, begins: str) -> Request:
        """The request with this id, or the only one whose id begins so. Raises CliError."""
        alike = self.requests(prefix=begins)
        exact = [request for request in alike if request.request_id == begins]
        if len(exact or alike) == 1:
            return (exact or alike)[0]
        if alike:
            shown = ", ".join(request.request_id for request in alike[:MOST_ALIKE])
            more = f" and {len(alike) - MOST_ALIKE} more" if len(alike) > MOST_ALIKE else ""
            raise CliError(
                f"{len(alike)} requests begin with '{begins}' at epoch {self.epoch}: {shown}{more}.",
                "Give more of the id.",
            )
        raise NoRequestError(
            f"There is no request '{begins}' at epoch {self.epoch}.",
            self._where_requests_are(begins),
        )

    def _where_requests_are(self, looked_for: str) -> str:
        if any(node.node_id == looked_for for node in self.nodes()):
            return f"{looked_for} is a node: `stele requests --node {looked_for}` shows those about it."
        all_ = "`stele requests` shows them all."
        if not self.since[0]:
            return all_
        return f"{all_} Those that ended up to epoch {self.since[0]} are in `stele epochs`."

    def keyspaces(self) -> list[Keyspace]:
        found = list[Keyspace]()
        for page in self.pages("/v1/keyspaces", KeyspacesPage):
            self.balancing = page.balancing
            found += page.keyspaces
        return found

    def tables(self) -> list[Table]:
        return [table for page in self.pages("/v1/tables", TablesPage) for table in page.tables]

    def groups(self) -> list[list[str]]:
        """Tables with the same tablets, by full name; that with which the others are co-located is first."""
        tables = self.tables()
        if not any(table.base_table_id for table in tables):
            return []
        of = {keyspace.keyspace_id: keyspace.name for keyspace in self.keyspaces()}
        found: dict[str, list[str]] = {}
        for table in sorted(tables, key=lambda table: bool(table.base_table_id)):
            owner = table.base_table_id or table.table_id
            found.setdefault(owner, []).append(f"{of[table.keyspace_id]}.{table.name}")
        return [names for names in found.values() if len(names) > 1]

    def map_owner(self, name: str) -> str:
        """Whose tablets a table has, by full name: moves and resizes in the log are about that one."""
        return next((names[0] for names in self.groups() if name in names), name)

    def names(self, requests: Iterable[Request]) -> dict[str, str]:
        """By id, of the keyspaces and tables that these requests are about; nothing is asked if
        there are none.
        """
        asked = [*requests]
        if not any(request.keyspace_id or request.table_id for request in asked):
            return {}
        if any(request.table_id for request in asked):
            return self.all_names()
        return self._keyspace_names()

    def all_names(self) -> dict[str, str]:
        """By id, of all keyspaces and tables."""
        of = self._keyspace_names()
        return of | {t.table_id: f"{of[t.keyspace_id]}.{t.name}" for t in self.tables()}

    def _keyspace_names(self) -> dict[str, str]:
        return {keyspace.keyspace_id: keyspace.name for keyspace in self.keyspaces()}

    def ranges(self, placement: str) -> int:
        """How many rows a placement has."""
        return next(self.placement(placement, 1)).ranges

    def placement(self, name: str, limit: int | None = None) -> Iterator[PlacementsPage]:
        """The rows of a placement, ``limit`` in a page."""
        return self.pages("/v1/placements", PlacementsPage, placement=name, limit=limit)

    def pages(self, path: str, kind: type[P], **params: object) -> Iterator[P]:
        """All pages of a question, of one epoch."""
        cursor: str | None = None
        while cursor != "":
            page = self._client.get(SERVICE, path, kind, cursor=cursor, **params, **self._at())
            self._fix(page.epoch, page.state_id)
            yield page
            cursor = page.next_cursor

    def _at(self) -> dict[str, object]:
        return {"epoch": self._epoch, "level": self._level}

    def _fix(self, epoch: int, state_id: str) -> None:
        self._epoch, self.state_id = epoch, state_id
