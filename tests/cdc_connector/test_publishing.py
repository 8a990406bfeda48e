"""The connector's requests to nodes, and its retries while nodes or their change logs are unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
import pytest

from stele.cdc_connector import publishing
from stele.cdc_connector.publishing import ChangesUnavailable, Publisher, captured_tables
from stele.cdc_connector.settings import CdcConnectorSettings
from stele.cdc_connector.topic import CURSOR, TableTopic, cursor_of
from stele.domain.commands import AlterTable, CreateTable
from stele.domain.model.schema import TableOptions
from stele.runtime.answers.common import ErrorBody
from stele.runtime.answers.node import ChangesView
from stele.runtime.transport import OnPiece
from tests.node.world import World

NONE: Mapping[str, str] = MappingProxyType({})
TABLE = "library.books"
PAGE = ChangesView([], "b2", 5, more=False, ended=False)
EXPIRED = ErrorBody("cdc_cursor_expired", "Changes after this cursor may be gone.")
BAD = ErrorBody("bad_cursor", "'f' is not a cursor.")


class Nodes:
    """Fake HTTP: answers of nodes by address. Other addresses refuse the connection."""

    def __init__(self, answers: Mapping[str, tuple[int, Any]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] = NONE,
        headers: Mapping[str, str] = NONE,
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        address = url.removesuffix("/v1/cdc/changes")
        self.asked.append((address, params))
        if address not in self.answers:
            raise aiohttp.ClientConnectionError("refused")
        status, answer = self.answers[address]
        on_piece(status, msgspec.json.encode(answer))
        return status

    async def close(self) -> None:
        raise AssertionError("the process closes the client, not the publisher")


@pytest.fixture
def world() -> World:
    world = World()
    world.apply(CreateTable(TABLE, TableOptions(cdc="true")))
    return world


async def publisher(world: World, nodes: Nodes) -> Publisher:
    return Publisher(CdcConnectorSettings(), await world.follower(), nodes)


async def test_changes_are_read_from_the_first_node_that_answers(world: World) -> None:
    nodes = Nodes({"http://n2": (503, ErrorBody("unavailable", "No.")), "http://n3": (200, PAGE)})
    assert await (await publisher(world, nodes))._read(TABLE, "a1") == PAGE
    assert [address for address, _ in nodes.asked] == ["http://n1", "http://n2", "http://n3"]
    assert nodes.asked[0][1]["after"] == "a1" and nodes.asked[0][1]["table"] == TABLE


@pytest.mark.parametrize(("status", "answer"), [(410, EXPIRED), (400, BAD)])
async def test_invalid_or_expired_cursor_restarts_at_the_oldest_change(
    world: World, status: int, answer: ErrorBody
) -> None:
    """The connector starts again at the oldest change, and its log warns that changes may be missing."""
    nodes = Nodes({"http://n1": (status, answer), "http://n2": (200, PAGE)})
    connector = await publisher(world, nodes)
    with pytest.raises(ChangesUnavailable) as failure:
        await connector._read(TABLE, "a1")
    assert connector._after_failure(TABLE, failure.value, "a1") == ""
    assert connector.troubles == {}


@pytest.mark.parametrize("value", [b"zz", b"", b"f" * 17, b"\xff", None, "a1"])
def test_foreign_records_in_the_topic_have_no_cursor(value: object) -> None:
    assert cursor_of({CURSOR: value}) == cursor_of({}) == ""
    assert cursor_of({"other": b"1", CURSOR: b"6617018970b05"}) == "6617018970b05"


async def test_failed_read_is_retried_from_the_same_cursor(world: World) -> None:
    connector = await publisher(world, Nodes({}))
    with pytest.raises(ChangesUnavailable) as failure:
        await connector._read(TABLE, "a1")
    assert connector._after_failure(TABLE, failure.value, "a1") == "a1"
    assert "http://n3" in connector.troubles[TABLE]


async def test_any_failure_of_a_table_is_reported_and_retried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = await publisher(world, Nodes({}))
    tries = asyncio.Queue[str]()

    def begin(topic: TableTopic) -> str:
        loop.call_soon_threadsafe(tries.put_nowait, topic.name)
        raise KeyError("no such topic")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(connector, "_begin", begin)
    monkeypatch.setattr(publishing, "RETRY_S", 0)
    async with asyncio.timeout(240):
        running = asyncio.create_task(connector.run())
        for _ in range(2):
            await tries.get()
    assert connector.troubles == {TABLE: "no such topic"}
    running.cancel()
    await asyncio.wait([running])


def test_tables_with_a_change_log_are_published(world: World) -> None:
    world.apply(CreateTable("library.plain"))
    assert [*captured_tables(world.image)] == [TABLE]
    world.apply(AlterTable(TABLE, TableOptions(cdc="false")))
    assert [*captured_tables(world.image)] == [TABLE], "its last changes are published"
    world.apply(AlterTable(TABLE, reset=("cdc",)))
    assert [*captured_tables(world.image)] == []
