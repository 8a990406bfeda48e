"""Columns of tables as an embedded store receives them, and requests with a table version."""

from __future__ import annotations

import httpx
import pytest
from msgspec.structs import replace

from stele.agent import Code, ColumnsChanged
from stele.agent.columns import watch_columns
from stele.agent.probing import ROW_PATH
from stele.domain.model.schema import CreateKeyspace, CreateTable, TableCreation
from stele.domain.routed import TABLE_VERSION, Routed, routed_of
from stele.runtime.http import Health, HttpError, build_app
from tests.agent.test_embedded import member_of
from tests.agent.test_judging import judge_of, routed
from tests.node.columned import PLAYS, USERS, alter, change, column, create_tables, schema_of
from tests.node.world import KEYSPACE, World


def names(change: ColumnsChanged) -> tuple[list[str], list[str], dict[str, str]]:
    added, dropped = ([each.name for each in these] for these in (change.added, change.dropped))
    return added, dropped, change.renamed


async def test_store_gets_each_table_with_columns_and_each_change() -> None:
    world, told = World(), list[ColumnsChanged]()
    create_tables(world)
    follower = await world.follower()
    watch_columns(follower, told.append)
    assert {each.table for each in told} == {USERS, PLAYS}
    assert all(each.before is None for each in told)
    told.clear()

    before = schema_of(world.image)
    alter(world, drop=("age",), add=(column("size", "int"),), rename={"name": "login"})
    world.apply(CreateTable(f"{KEYSPACE}.opaque"))
    await follower.wait_for_epoch(world.image.epoch)
    (altered,) = told
    assert (altered.before, altered.after) == (before, schema_of(world.image))
    assert altered.after is not None and altered.epoch == altered.after.version
    assert names(altered) == (["size"], ["age"], {"name": "login"})
    told.clear()

    new = f"{KEYSPACE}.new"
    change(world, TableCreation(name=new, columns=(column("id", "int", "partition_key"),)))
    await follower.wait_for_epoch(world.image.epoch)
    assert [(each.table, *names(each)) for each in told] == [(new, ["id"], [], {})]


async def test_readded_column_is_reported_as_dropped_and_added() -> None:
    world, told = World(), list[ColumnsChanged]()
    create_tables(world)
    follower = await world.follower()
    watch_columns(follower, told.append)
    told.clear()
    alter(world, drop=("age",))
    alter(world, add=(column("age", "int"),))
    await follower.wait_for_epoch(world.image.epoch)
    assert [names(each) for each in told] == [([], ["age"], {}), (["age"], [], {})]


async def test_member_has_the_schema_of_its_newest_epoch() -> None:
    world = World()
    create_tables(world)
    world.apply(CreateKeyspace("music", {"dc1": 3}))
    world.apply(CreateTable("music.opaque"))
    member, _ = await member_of(world)
    assert member.table_schema(USERS) == schema_of(world.image)
    assert member.table_schema("music.opaque") is None
    assert member.table_schema("music.nothing") is None


async def test_request_with_an_older_table_version_gets_the_newer_version() -> None:
    world = World()
    create_tables(world)
    older = schema_of(world.image).version
    alter(world, add=(column("size", "int"),))
    newer = schema_of(world.image).version
    member, _ = await member_of(world)
    data_id = world.data_id_of(USERS)
    for version, found in ((older, newer), (newer, 0), (0, 0)):
        request = replace(routed(world, b"k", table_version=version), data_id=data_id)
        async with member.request(request):
            assert member.newer_table_version(request) == found
    of_truncated_data = replace(request, data_id=f"{data_id}@9", table_version=older)
    assert member.newer_table_version(of_truncated_data) == newer


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (b'{"name": "ada"}', ""),
        (b'{"name": "ada", "age": 7}', "dropped_column"),
        (b'{"nmae": "ada"}', "unknown_column"),
        (b'["ada"]', "malformed_json"),
    ],
)
async def test_row_with_an_unknown_column_is_refused_with_the_table_version(
    row: bytes, code: str
) -> None:
    world = World()
    create_tables(world)
    alter(world, drop=("age",))
    member, _ = await member_of(world)
    found = ""
    try:
        member.check_columns(_of(world, USERS), row)
    except HttpError as error:
        found = error.body.code
        assert error.status == 400
        assert error.body.details["table_version"] == schema_of(world.image).version
    assert found == code


async def test_row_route_answers_like_a_write_of_the_row() -> None:
    world = World()
    create_tables(world)
    older = schema_of(world.image).version
    alter(world, drop=("age",))
    newer = schema_of(world.image).version
    member, _ = await member_of(world)
    app = build_app("store", [member.row_route()], lambda: Health(ok=True))
    request = _of(world, USERS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://n1") as http:
        for version, told in ((older, str(newer)), (newer, None)):
            headers = replace(request, table_version=version).headers()
            answer = await http.post(ROW_PATH, headers=headers, content=b'{"name": "ada"}')
            assert (answer.status_code, answer.headers.get(TABLE_VERSION)) == (204, told)
        refused = await http.post(ROW_PATH, headers=headers, content=b'{"age": 7}')
    assert refused.status_code == 400
    assert refused.json()["code"] == "dropped_column"
    assert refused.json()["details"]["table_version"] == newer


async def test_table_without_columns_accepts_any_bytes() -> None:
    world = World()
    world.apply(CreateKeyspace("music", {"dc1": 3}))
    world.apply(CreateTable("music.opaque"))
    member, _ = await member_of(world)
    member.check_columns(_of(world, "music.opaque"), b"\0")


def _of(world: World, table: str) -> Routed:
    return replace(routed(world, b"k"), data_id=world.data_id_of(table))


async def test_request_with_an_unread_table_version_is_refused_as_behind() -> None:
    world = World()
    create_tables(world)
    judge = judge_of(await world.follower())
    request = routed(world, b"k", table_version=world.image.epoch + 1)
    await judge.catch_up([request])
    refusal = judge.refusal(request)
    assert refusal is not None and refusal.code is Code.BEHIND
    assert f"not to {world.image.epoch + 1}" in refusal.text
    alter(world, add=(column("size", "int"),))
    await judge.catch_up([request])
    assert judge.refusal(request) is None


def test_table_version_is_an_optional_header() -> None:
    world = World()
    for version in (0, 7):
        request = routed(world, b"k", table_version=version)
        assert routed_of(request.headers()) == request
    assert "x-stele-table-version" not in routed(world, b"k").headers()
