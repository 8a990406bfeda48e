"""A table with columns on real nodes: rows over HTTP while its columns change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stele.domain.routed import TABLE_VERSION
from tests.deployment.processes import HTTP_OK, KEYSPACE, Deployment, nodes_of

pytestmark = pytest.mark.broker

TABLE = f"{KEYSPACE}.plays"
NODES = ("n1", "n2", "n3")
BAD_REQUEST, NOT_FOUND = 400, 404
ROW = "se%2Fnorth/2026-11-29"
CREATION = {
    "type": "create_table",
    "name": TABLE,
    "columns": [
        {"name": "country", "type": "text", "kind": "partition_key"},
        {"name": "day", "type": "date", "kind": "clustering"},
        {"name": "total", "type": "int", "kind": "static"},
        {"name": "song", "type": "text"},
        {"name": "price", "type": "decimal"},
    ],
}


@pytest.fixture
async def live(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with nodes_of(kafka, topics, tmp_path, *NODES) as cluster:
        yield cluster


class Client:
    """Requests for rows, each through the next node, with the newest table version."""

    def __init__(self, cluster: Deployment) -> None:
        self._cluster = cluster
        self._sent = 0
        self.version = 0

    async def send(
        self, method: str, key: str, row: dict[str, Any] | None = None, status: int = HTTP_OK
    ) -> dict[str, Any]:
        via = self._cluster.nodes[NODES[self._sent % len(NODES)]]
        self._sent += 1
        headers = {TABLE_VERSION: str(self.version)} if self.version else {}
        url = f"{via.url}/v1/data/{TABLE}/{key}"
        async with self._cluster.http.request(method, url, json=row, headers=headers) as answer:
            body: dict[str, Any] = await answer.json()
            assert answer.status == status, body
            if status == HTTP_OK:
                self.version = int(answer.headers[TABLE_VERSION])
            return body

    async def alter(self, **changes: object) -> None:
        change = {"type": "alter_table", "name": TABLE, **changes}
        outcome = await self._cluster.command(type="alter_schema", changes=[change])
        self.version = outcome["epoch"]


async def test_rows_are_written_and_read_while_columns_change(
    live: Deployment,
) -> None:
    await live.command(type="alter_schema", changes=[CREATION])
    client = Client(live)
    await client.send("PUT", ROW, {"song": "intro", "price": 1.10})
    await client.send("PUT", "se%2Fnorth", {"total": 3})
    assert await client.send("GET", ROW) == {
        "country": "se/north",
        "day": "2026-11-29",
        "song": "intro",
        "price": 1.10,
    }
    assert await client.send("GET", "se%2Fnorth") == {"country": "se/north", "total": 3}

    await client.alter(drop=["song"], rename={"day": "date"})
    refused = await client.send("PUT", ROW, {"song": "x"}, BAD_REQUEST)
    assert refused["code"] == "dropped_column"
    assert refused["details"]["table_version"] == client.version
    await client.alter(add=[{"name": "song", "type": "text"}])
    expected = {"country": "se/north", "date": "2026-11-29", "price": 1.10, "song": None}
    for _ in NODES:
        assert await client.send("GET", ROW) == expected
    await client.send("PUT", ROW, {"song": "outro", "price": None})
    for _ in NODES:
        assert await client.send("GET", ROW) == {**expected, "song": "outro", "price": None}

    refused = await client.send("PUT", ROW, {"price": "cheap"}, BAD_REQUEST)
    assert (refused["code"], refused["details"]["type"]) == ("wrong_type", "decimal")
    await client.send("DELETE", ROW)
    await client.send("GET", ROW, status=NOT_FOUND)
