"""The sixty-line store with one fault: ``python -m tests.conformance.broken_stores NAME`` runs that node.

The agent around the store is correct. The faults lose values, keep deleted values or mix values up.
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

store: Any = sixty_lines  # the example has no type annotations
Shelf: Any = store.Shelf

INSERT = "insert into rows values (?, ?, ?, ?) on conflict do "


def merge_raises(patch: Patch) -> None:
    def merge(self: Any, data_id: str, rows: list[Row]) -> None:
        raise RuntimeError("not written yet")

    patch.attribute(Shelf, "merge", merge)


def merge_does_nothing(patch: Patch) -> None:
    patch.attribute(Shelf, "merge", lambda self, data_id, rows: None)


def keeps_the_last_arrival(patch: Patch) -> None:
    patch.attribute(store, "NEWER", "on conflict do update set value = excluded.value")


def keeps_the_first_arrival(patch: Patch) -> None:
    patch.attribute(store, "NEWER", "on conflict do nothing")


def drops_streamed_rows(patch: Patch) -> None:
    """Drop the last row of each page."""
    plain = Shelf.merge

    def merge(self: Any, data_id: str, rows: list[Row]) -> None:
        plain(self, data_id, rows if len(rows) == 1 else rows[:-1])

    patch.attribute(Shelf, "merge", merge)


def skips_the_first_row_of_a_scan(patch: Patch) -> None:
    """Drop the first row of each requested span."""
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


def lists_no_data(patch: Patch) -> None:
    """List no data, so that nothing is ever deleted."""
    patch.attribute(Shelf, "data_ids", lambda self: [])


def keeps_values_in_memory(patch: Patch) -> None:
    """Acknowledge rows that are in a transaction that is never committed."""

    def merge(self: Any, data_id: str, rows: list[Row]) -> None:
        if not self.db.in_transaction:
            self.db.execute("begin")
        text = f"{INSERT}update set value = excluded.value where excluded.value > rows.value"
        self.db.executemany(text, [(data_id, *row) for row in rows])

    patch.attribute(Shelf, "merge", merge)


def reads_values_by_key_only(patch: Patch) -> None:
    """Return truncated rows as data of the new table."""

    class KeyOnlyShelf(Shelf):  # type: ignore[misc]
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

    patch.attribute(store, "Shelf", KeyOnlyShelf)


def serves_stale_requests(patch: Patch) -> None:
    """Serve every request: the routes do not use ``member.request``."""

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


def returns_another_value(patch: Patch) -> None:
    """Return the same value for every key of a range."""
    plain = Shelf.ask

    def ask(self: Any, text: str, *values: Any) -> Any:
        if text.startswith("select value from rows"):
            return plain(self, "select value from rows where data = ? limit 1", values[0])
        return plain(self, text, *values)

    patch.attribute(Shelf, "ask", ask)


BROKEN_STORES = {
    merge_raises: ("current-request-is-served", three_join),
    merge_does_nothing: ("newer-value-stays", three_join),
    keeps_the_last_arrival: ("newer-value-stays", three_join),
    keeps_the_first_arrival: ("newer-value-stays", three_join),
    returns_another_value: ("newer-value-stays", three_join),
    drops_streamed_rows: ("values-are-kept", a_fourth_joins),
    skips_the_first_row_of_a_scan: ("values-are-kept", a_fourth_joins),
    deletes_everything: ("values-are-kept", a_fourth_joins),
    deletes_nothing: ("given-away-is-deleted", a_fourth_joins),
    lists_no_data: ("given-away-is-deleted", a_fourth_joins),
    keeps_values_in_memory: ("values-are-kept", one_is_killed_and_comes_back),
    serves_stale_requests: ("stale-request-is-refused", requests_are_judged),
    reads_values_by_key_only: ("truncates", a_keyspace_is_truncated),
}
"""The fault, the rule that the kit must report, and the scene that shows it."""
IN_EVERY_RUN = {
    merge_raises,
    keeps_the_last_arrival,
    drops_streamed_rows,
    lists_no_data,
    keeps_values_in_memory,
    serves_stale_requests,
    reads_values_by_key_only,
}
"""One or two faults per rule. ``make hunt`` tries the others."""


if __name__ == "__main__":
    with Patch() as planted:
        {fault.__name__: fault for fault in BROKEN_STORES}[sys.argv[1]](planted)
        code = run_store("shelf", store.Shelf, store.routes)
    raise SystemExit(code)
