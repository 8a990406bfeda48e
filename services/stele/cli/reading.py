"""Reads of one state in pages. The first answer fixes the epoch of all later ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Literal, TypeVar

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Balancing, Keyspace, Table
from stele.domain.model.schema_objects import Column
from stele.domain.model.services import Service
from stele.domain.model.table_snapshots import TableSnapshot
from stele.runtime.answers.metadata_log import (
    CatchUpAnswer,
    CursorPage,
    KeyspacesPage,
    NodesPage,
    PlacementsPage,
    RepairsPage,
    RequestAnswer,
    RequestsPage,
    SchemaAnswer,
    ServicesPage,
    SettingsPage,
    TableSnapshotsPage,
    TablesPage,
    TopologyAnswer,
)

P = TypeVar("P", bound=CursorPage)
T = TypeVar("T")
Level = Literal["local", "barrier", "linearizable"]

SERVICE = "metadata-log"
MOST_ALIKE = 3
"""Limit of the requests listed for an ambiguous prefix."""
EPOCHS_IN_ANSWER = 1000
"""Limit of epochs in one answer; the metadata-log refuses more."""


def as_counted(name: str) -> list[str | int]:
    """Return a sort key in which numbers sort as numbers. Text and numbers alternate."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def read_epochs(
    client: Client, first: int, count: int, kind: type[list[T]], facts: Iterable[str] = ()
) -> list[T]:
    """Return up to ``count`` epochs from ``first`` on, with all facts or those of these names.

    One answer may hold fewer than requested. Raises CliError.
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


def first_rows(
    pages: Iterator[P], limit: int, rows_of: Callable[[P], Sequence[T]]
) -> tuple[P, list[T]]:
    """Return the first page, and the first ``limit`` rows of all pages; 0: all rows."""
    first = next(pages)
    rows = (row for page in chain([first], pages) for row in rows_of(page))
    return first, [*islice(rows, limit or None)]


class NoRequestError(CliError):
    """Raised when no request of the state has an id with this prefix."""


class StateReading:
    """Reads one state of the cluster: at ``epoch``, or the newest one at ``level``."""

    def __init__(self, client: Client, epoch: int | None = None, level: Level = "barrier") -> None:
        self._client = client
        self._level = level
        self._epoch = epoch
        self.state_id = ""
        self.since = (0, 0)
        """Epoch and time (ms) since which no finished request was forgotten."""
        self.balancing = Balancing()
        """The cluster's balancing switch; set after keyspaces were read."""

    @property
    def epoch(self) -> int:
        """The epoch of the state; known after the first answer."""
        assert self._epoch is not None
        return self._epoch

    def document(self, **fields: object) -> dict[str, object]:
        """Return fields of this state as a document, which begins with its epoch and id."""
        return {"epoch": self.epoch, "state_id": self.state_id, **fields}

    def topology(self) -> TopologyAnswer:
        answer = self._client.get(SERVICE, "/v1/topology", TopologyAnswer, **self._at())
        self._fix(answer.epoch, answer.state_id)
        return answer

    def nodes(self) -> list[Node]:
        """Return the nodes in natural order: n2 before n10."""
        found = [node for page in self.pages("/v1/nodes", NodesPage) for node in page.nodes]
        return sorted(found, key=lambda node: as_counted(node.node_id))

    def services(self) -> list[Service]:
        pages = self.pages("/v1/services", ServicesPage)
        return [service for page in pages for service in page.services]

    def features(self) -> tuple[str, ...]:
        """Return the enabled features."""
        return next(self.pages("/v1/settings", SettingsPage)).features

    def settings(self) -> dict[str, str]:
        """Return the settings that are set, by name."""
        pages = self.pages("/v1/settings", SettingsPage)
        return {name: value for page in pages for name, value in page.settings.items()}

    def requests(self, **filters: str | None) -> list[Request]:
        """Return topology requests, the oldest first."""
        found = list[Request]()
        for page in self.pages("/v1/requests", RequestsPage, **filters):
            self.since = (page.since_epoch, page.since_ms)
            found += page.requests
        return sorted(found, key=lambda r: (r.submitted_epoch, r.request_id))

    def repairs(self, table: str, tablet: int | None = None) -> list[int]:
        """Return the time (ms) of the last repair of each tablet, or of one; 0: never."""
        pages = self.pages("/v1/repairs", RepairsPage, table=table, tablet=tablet)
        return [each.repaired_ms for page in pages for each in page.repairs]

    def table_snapshots(self) -> list[TableSnapshot]:
        pages = self.pages("/v1/table_snapshots", TableSnapshotsPage)
        return [snapshot for page in pages for snapshot in page.table_snapshots]

    def catch_up(self) -> CatchUpAnswer:
        """Return the state of the log's archive."""
        answer = self._client.get(SERVICE, "/v1/catch_up", CatchUpAnswer, **self._at())
        self._fix(answer.epoch, answer.state_id)
        return answer

    def request(self, request_id: str) -> RequestAnswer:
        """Return a request. Raises CliError when there is none."""
        answer = self._client.get(
            SERVICE, f"/v1/requests/{request_id}", RequestAnswer, **self._at()
        )
        self._fix(answer.epoch, answer.state_id)
        return answer

    def find(self, begins: str) -> Request:
        """Return the request with this id or unique prefix. Raises CliError."""
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
        return f"{all_} Some that ended by epoch {self.since[0]} are only in `stele epochs`."

    def keyspaces(self) -> list[Keyspace]:
        found = list[Keyspace]()
        for page in self.pages("/v1/keyspaces", KeyspacesPage):
            self.balancing = page.balancing
            found += page.keyspaces
        return found

    def tables(self) -> list[Table]:
        return [table for page in self.pages("/v1/tables", TablesPage) for table in page.tables]

    def tables_and_tablets(self) -> tuple[list[Table], dict[str, int]]:
        """Return all tables, and the number of tablets by table id, for those that have some."""
        tables, tablets = list[Table](), dict[str, int]()
        for page in self.pages("/v1/tables", TablesPage):
            tables += page.tables
            tablets |= page.tablets
        # A metadata-log of an older release does not tell how many.
        untold = (t for t in tables if t.placement and t.table_id not in tablets)
        return tables, tablets | {t.table_id: self.ranges(t.placement) for t in untold}

    def columns(self, name: str) -> tuple[Column, ...]:
        """Return the columns of a table by its full name; none if it keeps values by key."""
        answer = self._client.get(SERVICE, "/v1/schema", SchemaAnswer, **self._at())
        of = {keyspace.keyspace_id: keyspace.name for keyspace in answer.keyspaces}
        ids = {t.table_id for t in answer.tables if f"{of[t.keyspace_id]}.{t.name}" == name}
        return next((s.columns for s in answer.table_schemas if s.table_id in ids), ())

    def groups(self) -> list[list[str]]:
        """Return groups of tables that share tablets, by full name; the owner is first."""
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
        """Return the owner of a table's tablets. The log names it in moves and resizes."""
        return next((names[0] for names in self.groups() if name in names), name)

    def names(self, requests: Iterable[Request]) -> dict[str, str]:
        """Return the names of the requests' keyspaces and tables, by id.

        No call is made if the requests are about none.
        """
        asked = [*requests]
        if not any(request.keyspace_id or request.table_id for request in asked):
            return {}
        if any(request.table_id for request in asked):
            return self.all_names()
        return self._keyspace_names()

    def all_names(self) -> dict[str, str]:
        """Return the names of all keyspaces and tables, by id."""
        of = self._keyspace_names()
        return of | {t.table_id: f"{of[t.keyspace_id]}.{t.name}" for t in self.tables()}

    def _keyspace_names(self) -> dict[str, str]:
        return {keyspace.keyspace_id: keyspace.name for keyspace in self.keyspaces()}

    def ranges(self, placement: str) -> int:
        """Return the number of rows of a placement."""
        return next(self.placement(placement, 1)).ranges

    def placement(self, name: str, limit: int | None = None) -> Iterator[PlacementsPage]:
        """Yield the rows of a placement, ``limit`` in a page."""
        return self.pages("/v1/placements", PlacementsPage, placement=name, limit=limit)

    def pages(self, path: str, kind: type[P], **params: object) -> Iterator[P]:
        """Yield all pages of a query, all of one epoch."""
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
