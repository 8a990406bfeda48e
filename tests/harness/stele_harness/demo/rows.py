"""A load that writes rows of a table while its columns change, and the check of their changes.

A client of the table sends the newest version that it knows. Nodes serve its requests by that
version or a newer one, so no request fails because nodes have different columns. A request with a
dropped column is refused with the version to read, and the client sends the row without the column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from stele.cli.commands.data import PutAnswer
from stele.domain.routed import TABLE_VERSION
from stele.runtime.answers.common import ErrorBody
from stele.runtime.answers.node import ChangeView
from stele_harness.demo.load import Answer, Load

KEYS_PER_WORKER: Final = 8
PAUSE_S: Final = 0.01
KEY_COLUMNS: Final = ("desk", "reader", "title")
"""Names of the key columns after the rename."""
NUMBER: Final = "times"
ADDED: Final = "note"
"""The column that is added, and dropped later."""
BAD_REQUEST: Final = 400
DROPPED: Final = "dropped_column"


class Acknowledged(NamedTuple):
    """An acknowledged write: its time in microseconds since 1970, and its number."""

    time_us: int
    number: int


class RowLoad(Load):
    """Workers that write rows of a table with columns.

    ``version`` is the newest version of the table that the client knows; ``columns`` are its columns
    in that version, without the key.
    """

    def __init__(self, http: aiohttp.ClientSession, table: str, version: int) -> None:
        super().__init__(
            http, table=table, prefix="desk", keys_per_worker=KEYS_PER_WORKER, pause_s=PAUSE_S
        )
        self.version = version
        self.columns: tuple[str, ...] = (NUMBER,)
        self.acknowledged = defaultdict[str, list[Acknowledged]](list)
        """Acknowledged writes by key, in their order."""
        self.dropped_at: set[int] = set()
        """Versions of the table in refusals of the dropped column."""

    def refused(self) -> list[str]:
        """Return the requests that a node refused as wrong. Changes of columns must cause none."""
        failures = self.account.failures.items()
        return [f"{times} x {text}" for text, times in failures if f": {BAD_REQUEST} " in text]

    def _content(self, _key: str, number: int) -> bytes:
        return msgspec.json.encode(
            {column: number if column == NUMBER else f"loan {number}" for column in self.columns}
        )

    def _number(self, answer: Answer, key: str) -> int:
        return 0 if answer.status == 404 else _number_of(_row(answer.body), key)

    def _headers(self) -> dict[str, str]:
        return {TABLE_VERSION: str(self.version)}

    async def _call(self, method: str, node: str, key: str, value: bytes | None) -> Answer:
        sent = self.version
        answer = await super()._call(method, node, key, value)
        if value is None:
            return answer
        number = _row(value)[NUMBER]
        if (dropped_at := _dropped_at(answer)) > sent:
            self.dropped_at.add(dropped_at)
            self.version, self.columns = max(self.version, dropped_at), (NUMBER,)
            answer = await super()._call(method, node, key, self._content(key, number))
        if answer.status == 200:
            time_us = msgspec.json.decode(answer.body, type=PutAnswer).timestamp
            self.acknowledged[key].append(Acknowledged(time_us, number))
        return answer

    def missing_changes(self, changes: Iterable[ChangeView]) -> list[str]:
        """Return acknowledged writes that a change log lacks or has in another order, as texts."""
        logged = defaultdict[str, list[Acknowledged]](list)
        newest_us, found = 0, list[str]()
        for change in changes:
            row = change.row or {}
            if change.time_us < newest_us:
                found.append(f"{row} of {change.time_us} comes after {newest_us}")
            newest_us = change.time_us
            logged[_key_of(row)].append(Acknowledged(change.time_us, row.get(NUMBER, -1)))
        for key, writes in self.acknowledged.items():
            there = {*logged[key]}
            found.extend(f"{key}: {write.number}" for write in writes if write not in there)
            numbers = [each.number for each in logged[key]]
            if numbers != sorted(numbers):
                found.append(f"{key}: {numbers} are not in the order of their writes")
        return found


def _number_of(row: dict[str, Any], key: str) -> int:
    number = row.get(NUMBER)
    is_own = isinstance(number, int) and list(row.values())[: len(KEY_COLUMNS)] == key.split("/")
    return number if is_own and isinstance(number, int) else -1


def _row(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _key_of(row: dict[str, Any]) -> str:
    """Return the key of a change. It is no key of the load if a column has another name."""
    return "/".join(str(row.get(column)) for column in KEY_COLUMNS)


def _dropped_at(answer: Answer) -> int:
    """Return the table's version in a refusal of a dropped column, and 0 for other answers."""
    if answer.status != BAD_REQUEST:
        return 0
    try:
        error = msgspec.json.decode(answer.body, type=ErrorBody)
    except msgspec.MsgspecError:
        return 0
    version = error.details.get("table_version")
    return version if error.code == DROPPED and isinstance(version, int) else 0
