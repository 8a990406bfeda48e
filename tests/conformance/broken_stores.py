"""Stores of sixty lines with a fault each: ``python -m tests.conformance.broken_stores NAME`` is such a node.

The agent around them is sound: they lose, keep and mix up values.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples.sixty_lines import store as sixty_lines
from stele.agent import Row, request_of, run_store
from stele_harness.conformance.data_scenes import a_keyspace_is_truncated
from stele_harness.conformance.scenes import (
    a_fourth_joins,
    one_is_killed_and_comes_back,
    requests_are_judged,
    three_join,
)
from stele_simulator.patching import Patch

store: Any = sixty_lines  # an example has no types
Shelf: Any = store.Shelf

INSERT = "insert into rows values (?, ?, ?, ?) on conflict do "


def merge_raises(patch: Patch) -> None:
    def merge(self: Any, data_id: str, rows: list[Row]) -> None:
        raise RuntimeError("not written yet")

    patch.attribute(Shelf, "merge", merge)


def merge_does_nothing(patch: Patch) -> None:
    patch.attribute(Shelf, "merge", lambda self, data_id, rows: None)


def the_last_to_come_stays(patch: Patch) -> None:
    patch.attribute(store, "NEWER", "on conflict do update set value = excluded.value")


def the_first_to_come_stays(patch: Patch) -> None:
    patch.attribute(store, "NEWER", "on conflict do nothing")


def drops_rows_that_stream_in(patch: Patch) -> None:
    """Drops the last row of a page."""
    plain = Shelf.merge

    def merge(self: Any, data_id: str, rows: list[Row]) -> None:
        plain(self, data_id, rows if len(rows) == 1 else rows[:-1])

    patch.attribute(Shelf, "merge", merge)


def scans_without_the_first_row(patch: Patch) -> None:
    """Reads each requested span from its start."""
    plain = Shelf.scan

    def scan(self: Any, span: Any, after: Any, limit: int) -> list[Row]:
        found: list[Row] = plain(self, span, after, limit)
        return found[1:] if after is None else found

    patch.attribute(Shelf, "scan", scan)


def deletes_nothing(patch: Patch) -> None:
    patch.attribute(Shelf, "delete", lambda self, span, limit: 0)


def deletes_everything(patch: Patch) -> None:
    def delete(self: Any, span: Any, limit: int) -> int:
        return int(self.db.execute("delete from rows where data = ?", (span.keyspace,)).rowcount)

    patch.attribute(Shelf, "delete", delete)


def knows_no_data(patch: Patch) -> None:
    """So nothing is ever deleted."""
    patch.attribute(Shelf, "data_ids", lambda self: [])


def keeps_values_in_memory(patch: Patch) -> None:
    """Acknowledged, they are in a transaction that is never committed."""

    def merge(self: Any, data_id: str, rows: list[Row]) -> None:
        if not self.db.in_transaction:
            self.db.execute("begin")
        text = f"{INSERT}update set value = excluded.value where excluded.value > rows.value"
        self.db.executemany(text, [(data_id, *row) for row in rows])

    patch.attribute(Shelf, "merge", merge)


def finds_values_by_their_key_alone(patch: Patch) -> None:
    """Truncated rows are read as data of the new table."""

    class Kept(Shelf):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.kept = sqlite3.connect(f"{path}.kept", isolation_level=None)
            self.kept.execute("create table if not exists kept (key blob primary key, value blob)")

        def merge(self, data_id: str, rows: list[Row]) -> None:
            super().merge(data_id, rows)
            text = "insert into kept values (?, ?) on conflict do update set value = excluded.value"
            newer = f"{text} where excluded.value > kept.value"
            self.kept.executemany(newer, [row[1:] for row in rows])

        def ask(self, text: str, *values: Any) -> Any:
            if text.startswith("select value from rows"):
                return self.kept.execute(
                    "select value from kept where key = ?", values[2:]
                ).fetchall()
            return super().ask(text, *values)

    patch.attribute(store, "Shelf", Kept)


def serves_whoever_asks(patch: Patch) -> None:
    """Its routes were written without ``member.request``."""

    def routes(_: object, shelf: Any) -> list[Route]:
        async def put(request: Request) -> Response:
            asked, value = request_of(request), await request.body()
            shelf.merge(
                asked.data_id, [Row(asked.token, request.path_params["key"].encode(), value)]
            )
            return Response()

        async def get(request: Request) -> Response:
            asked, key = request_of(request), request.path_params["key"].encode()
            text = "select value from rows where data = ? and token = ? and key = ?"
            found = shelf.ask(text, asked.data_id, asked.token, key)
            return Response(found[0][0] if found else b"")

        path = "/v1/values/{key:path}"
        return [Route(path, put, methods=["PUT"]), Route(path, get, methods=["GET"])]

    patch.attribute(store, "routes", routes)


def answers_another_value(patch: Patch) -> None:
    """It mixes keys up: all of a range have one value."""
    plain = Shelf.ask

    def ask(self: Any, text: str, *values: Any) -> Any:
        if text.startswith("select value from rows"):
            return plain(self, "select value from rows where data = ? limit 1", values[0])
        return plain(self, text, *values)

    patch.attribute(Shelf, "ask", ask)


BROKEN_STORES = {
    merge_raises: ("current-request-is-served", three_join),
    merge_does_nothing: ("newer-value-stays", three_join),
    the_last_to_come_stays: ("newer-value-stays", three_join),
    the_first_to_come_stays: ("newer-value-stays", three_join),
    answers_another_value: ("newer-value-stays", three_join),
    drops_rows_that_stream_in: ("values-are-kept", a_fourth_joins),
    scans_without_the_first_row: ("values-are-kept", a_fourth_joins),
    deletes_everything: ("values-are-kept", a_fourth_joins),
    deletes_nothing: ("given-away-is-deleted", a_fourth_joins),
    knows_no_data: ("given-away-is-deleted", a_fourth_joins),
    keeps_values_in_memory: ("values-are-kept", one_is_killed_and_comes_back),
    serves_whoever_asks: ("stale-request-is-refused", requests_are_judged),
    finds_values_by_their_key_alone: ("truncates", a_keyspace_is_truncated),
}
"""The fault, the rule that the kit must say is broken, and the scene in which it does."""
IN_EVERY_RUN = {
    merge_raises,
    the_last_to_come_stays,
    drops_rows_that_stream_in,
    knows_no_data,
    keeps_values_in_memory,
    serves_whoever_asks,
    finds_values_by_their_key_alone,
}
"""One or two of each rule; the others are tried by ``make hunt``."""


if __name__ == "__main__":
    with Patch() as planted:
        {fault.__name__: fault for fault in BROKEN_STORES}[sys.argv[1]](planted)
        code = run_store("shelf", store.Shelf, store.routes)
    raise SystemExit(code)
