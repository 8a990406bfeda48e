"""CQL: each statement is a change, exported schemas can be imported, and errors have positions."""

import random
from functools import cache

import msgspec
import pytest

from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import TableOptions
from stele.domain.model.schema_objects import ClusteringOrder, IndexTarget, TypeField
from stele.runtime.answers.of_image import schema_answer
from stele.words.cql import statements
from stele.words.cql_parser import CqlError, parse_cql
from tests.domain.history import World
from tests.domain.schema.examples import (
    CK,
    PK,
    STATIC,
    alter,
    cluster,
    column,
    function,
    table,
    user_type,
)
from tests.domain.schema.test_changes import random_changes

STATEMENTS: dict[str, tuple[str, c.AnyChange]] = {
    "keyspace": (
        "CREATE KEYSPACE IF NOT EXISTS m WITH replication = {'class': 'NetworkTopologyStrategy',"
        " 'dc1': 3, 'dc2': 'r1, r2'} AND tablets = {'enabled': true, 'initial': 8}",
        c.KeyspaceCreation(
            name="m",
            replication={"dc1": 3},
            racks={"dc2": ("r1", "r2")},
            tablets=True,
            initial_tablets=8,
            if_not_exists=True,
        ),
    ),
    "drop_keyspace": (
        'drop keyspace if exists "M"',
        c.KeyspaceRemoval(name="M", if_exists=True),
    ),
    "table": (
        'CREATE TABLE m.t (a int, "B" text, C int, s list<frozen<map<int, text>>> STATIC,'
        " PRIMARY KEY ((a, \"B\"), c)) WITH CLUSTERING ORDER BY (c DESC) AND comment = 'it''s'"
        " AND gc_grace_seconds=5 AND cdc = {'enabled': true} AND tablets = {'min_tablet_count': 4}",
        c.TableCreation(
            name="m.t",
            columns=(
                column("a", "int", PK),
                column("B", "text", PK),
                c.ColumnDefinition(name="c", type="int", kind=CK, order=ClusteringOrder.DESC),
                column("s", "list<frozen<map<int, text>>>", STATIC),
            ),
            parameters={
                "comment": "it's",
                "gc_grace_seconds": "5",
                "cdc": "{'enabled': 'true'}",
            },
            options=TableOptions(min_tablet_count=4),
        ),
    ),
    "inline_key_and_names_that_are_words": (
        "create table m.iffy (type uuid primary key, key text, static int static, asc_ int, values int)",
        c.TableCreation(
            name="m.iffy",
            columns=(
                column("type", "uuid", PK),
                column("key", "text"),
                column("static", "int", STATIC),
                column("asc_", "int"),
                column("values", "int"),
            ),
        ),
    ),
    "add": (
        "ALTER TABLE IF EXISTS m.t ADD IF NOT EXISTS (a vector<float, 3>, b int static)",
        c.TableAlteration(
            name="m.t",
            add=(column("a", "vector<float, 3>"), column("b", "int", STATIC)),
            if_exists=True,
            add_if_not_exists=True,
        ),
    ),
    "drop": (
        "ALTER TABLE m.t DROP IF EXISTS (a, b)",
        c.TableAlteration(name="m.t", drop=("a", "b"), drop_if_exists=True),
    ),
    "rename": (
        "ALTER TABLE m.t RENAME a TO b AND c TO d",
        c.TableAlteration(name="m.t", rename={"a": "b", "c": "d"}),
    ),
    "retype": (
        "ALTER TABLE m.t ALTER a TYPE blob",
        c.TableAlteration(name="m.t", types={"a": "blob"}),
    ),
    "parameters": (
        "ALTER TABLE m.t WITH default_time_to_live = 0 AND comment = ''",
        c.TableAlteration(name="m.t", parameters={"default_time_to_live": "0", "comment": ""}),
    ),
    "drop_table": ("DROP TABLE IF EXISTS m.t", c.TableRemoval(name="m.t", if_exists=True)),
    "type": (
        "CREATE TYPE IF NOT EXISTS m.y (a int, b frozen<z>)",
        c.TypeCreation(
            name="m.y",
            fields=(TypeField("a", "int"), TypeField("b", "frozen<z>")),
            if_not_exists=True,
        ),
    ),
    "alter_type": (
        "ALTER TYPE IF EXISTS m.y RENAME a TO b",
        c.TypeAlteration(name="m.y", rename={"a": "b"}, if_exists=True),
    ),
    "add_field": (
        "ALTER TYPE m.y ADD c int",
        c.TypeAlteration(name="m.y", add=(TypeField("c", "int"),)),
    ),
    "drop_type": ("DROP TYPE m.y", c.TypeRemoval(name="m.y")),
    "function": (
        "CREATE OR REPLACE FUNCTION m.f (a int, b list<text>) RETURNS NULL ON NULL INPUT"
        " RETURNS int LANGUAGE Lua AS $$ return 'x'; $$",
        c.FunctionCreation(
            name="m.f",
            arguments=(TypeField("a", "int"), TypeField("b", "list<text>")),
            return_type="int",
            language="lua",
            body=" return 'x'; ",
            or_replace=True,
        ),
    ),
    "drop_function": (
        "DROP FUNCTION m.f (int, list<text>)",
        c.FunctionRemoval(name="m.f", argument_types=("int", "list<text>")),
    ),
    "aggregate": (
        "CREATE AGGREGATE m.s (int) SFUNC f STYPE tuple<int, text> FINALFUNC g INITCOND (0, 'a')",
        c.AggregateCreation(
            name="m.s",
            argument_types=("int",),
            state_function="f",
            state_type="tuple<int, text>",
            final_function="g",
            initial_condition="(0, 'a')",
        ),
    ),
    "drop_aggregate": (
        "DROP AGGREGATE IF EXISTS m.s",
        c.AggregateRemoval(name="m.s", if_exists=True),
    ),
    "index": (
        "CREATE CUSTOM INDEX IF NOT EXISTS i ON m.t (keys(a)) USING 'sai' WITH OPTIONS = {'a': 'b'}",
        c.IndexCreation(
            table="m.t",
            column="a",
            name="i",
            target=IndexTarget.KEYS,
            using="sai",
            options={"a": "b"},
            if_not_exists=True,
        ),
    ),
    "index_without_name": ("CREATE INDEX ON m.t (a)", c.IndexCreation(table="m.t", column="a")),
    "drop_index": ("DROP INDEX m.i", c.IndexRemoval(name="m.i")),
    "view": (
        "CREATE MATERIALIZED VIEW m.v AS SELECT a, b FROM m.t WHERE a IS NOT NULL AND b = -3"
        " AND c IN (1, 2) PRIMARY KEY (a, b, c) WITH CLUSTERING ORDER BY (b DESC)",
        c.ViewCreation(
            name="m.v",
            base="m.t",
            columns=("a", "b"),
            where=(
                c.ViewCondition("a"),
                c.ViewCondition("b", "=", "-3"),
                c.ViewCondition("c", "IN", "(1, 2)"),
            ),
            partition_key=("a",),
            clustering=(c.ViewKey("b", ClusteringOrder.DESC), c.ViewKey("c")),
        ),
    ),
    "alter_view": (
        "ALTER MATERIALIZED VIEW m.v WITH comment = 'c'",
        c.ViewAlteration(name="m.v", parameters={"comment": "c"}),
    ),
    "drop_view": ("DROP MATERIALIZED VIEW m.v", c.ViewRemoval(name="m.v")),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_parses_to_its_change(name: str) -> None:
    text, change = STATEMENTS[name]
    assert parse_cql(text) == (change,)


def test_each_kind_of_change_has_a_statement() -> None:
    assert {type(change) for _, change in STATEMENTS.values()} == {*c.CHANGES}


def test_text_with_comments_and_use_is_one_batch() -> None:
    text = """-- the radio service
    USE m; /* types */ DROP TYPE a; // and another
    ; DROP TYPE other.b;"""
    assert parse_cql(text) == (c.TypeRemoval(name="m.a"), c.TypeRemoval(name="other.b"))
    assert parse_cql("") == parse_cql(" ; ") == ()


@pytest.mark.parametrize(
    ("text", "line", "column_number", "words"),
    [
        ("DROP TABLE m.t;\nCREATE TABL m.t (a int)", 2, 8, "found 'TABL'"),
        ("CREATE TABLE m.t (a int", 1, 24, "found the end, expected one of: ) ,"),
        ("CREATE TABLE m.t (a int PRIMARY KEY) WITH comment = ;", 1, 53, "<string>"),
        ("SELECT 1", 1, 1, "ALTER CREATE DROP"),
        ("DROP TABLE m.t ?", 1, 16, "found '?'"),
        ("DROP TABLE t", 1, 12, "t has no keyspace"),
        ("CREATE TABLE m.t (a int)", 1, 1, "no PRIMARY KEY"),
        ("CREATE TABLE m.t (a int PRIMARY KEY, PRIMARY KEY (a))", 1, 1, "more than one"),
        ("CREATE TABLE m.t (a int, PRIMARY KEY (b))", 1, 26, "unknown column b"),
        ("CREATE TABLE m.t (a int PRIMARY KEY, b int, b text)", 1, 45, "'b' is given twice"),
        ("CREATE TABLE m.t (a int PRIMARY KEY) WITH cdc = {} AND cdc = {}", 1, 56, "'cdc' is"),
        ("CREATE TABLE m.t (a int PRIMARY KEY) WITH cdc = {'ttl': 1, 'ttl': 2}", 1, 60, "'ttl'"),
        ("ALTER TABLE m.t RENAME a TO b AND a TO c", 1, 35, "'a' is given twice"),
        ("CREATE TABLE m.t (a int static primary key)", 1, 19, "static column a"),
        (
            "CREATE TABLE m.t (a int PRIMARY KEY) WITH CLUSTERING ORDER BY (a DESC)",
            1,
            1,
            "is not a clustering column",
        ),
        ("CREATE INDEX ON m.t (half(a))", 1, 22, "expected entries, full, keys, values"),
        ("CREATE KEYSPACE m WITH replication = 3", 1, 1, "expected a map"),
        ("CREATE KEYSPACE m WITH replication = {'class': 'SimpleStrategy'}", 1, 1, "Network"),
        ("CREATE KEYSPACE m WITH replica = {'dc1': 3}", 1, 1, "unknown option replica"),
    ],
)
def test_syntax_error_has_its_position_and_the_expected_tokens(
    text: str, line: int, column_number: int, words: str
) -> None:
    with pytest.raises(CqlError) as caught:
        parse_cql(text)
    assert (caught.value.line, caught.value.column) == (line, column_number)
    assert words in str(caught.value)


def exported(image: Image) -> str:
    return "\n".join(each.text for each in statements(schema_answer(image)))


def recreated(text: str) -> World:
    """Return a cluster whose schema comes from the statements. The keyspace exists before."""
    world = cluster()
    changes = [change for change in parse_cql(text) if not isinstance(change, c.KeyspaceCreation)]
    refused = alter(world, *changes)
    assert refused is None, refused
    return world


@cache
def unusual_schema() -> Image:
    """Return a schema with all kinds of objects, with names that are keywords or need quotes."""
    world = cluster()
    names = ("select", "Type", "table", "a b", 'say "x"', "static", "list", "primary")
    refused = alter(
        world,
        user_type("Address", street="text", order="int"),
        table(
            "Order",
            column("group", "int", CK),
            *(column(name, 'frozen<list<frozen<"Address">>>') for name in names),
            parameters={"comment": "it's -- no comment", "caching": "{'keys': 'ALL'}"},
        ),
        c.IndexCreation(
            table="library.Order", column="Type", target=IndexTarget.FULL, name="Index"
        ),
        c.ViewCreation(
            name="library.View",
            base="library.Order",
            partition_key=("group",),
            clustering=(c.ViewKey("id", ClusteringOrder.DESC),),
            where=(c.ViewCondition("group", ">", "3"), c.ViewCondition("id")),
            parameters={"gc_grace_seconds": "7"},
        ),
        msgspec.structs.replace(function("Plus", "int", "int", "int"), body="return $$ or 'x'"),
        c.AggregateCreation(
            name="library.Total",
            argument_types=("int",),
            state_function="Plus",
            state_type="int",
            initial_condition="-1",
        ),
    )
    assert refused is None, refused
    return world.image


def test_exported_schema_creates_the_same_schema() -> None:
    text = exported(unusual_schema())
    assert exported(recreated(text).image) == text


@pytest.mark.parametrize(
    ("type_", "body"),
    [
        ("tuple<int, text>", "return x"),
        ("int", "return 'x' $$ y"),
        ("int", "return '$"),
        ("int", "$x\n"),
        ("int", "$"),
    ],
)
def test_exported_function_creates_the_same_function(type_: str, body: str) -> None:
    world = cluster()
    created = msgspec.structs.replace(function("f", type_, type_), body=body)
    assert alter(world, created) is None
    (expected,) = world.image.schema.functions.values()
    (found,) = recreated(exported(world.image)).image.schema.functions.values()
    assert (found.arguments, found.return_type) == (expected.arguments, expected.return_type)
    assert found.body == body


@pytest.mark.parametrize("seed", range(3))
def test_export_of_random_schemas_creates_the_same_schema(seed: int) -> None:
    world = cluster()
    for batch in random_changes(random.Random(f"export/{seed}")):
        alter(world, *batch)
        if world.image.requests.unfinished():
            world.run()
    text = exported(world.image)
    assert "CREATE TABLE" in text or "CREATE TYPE" in text
    assert exported(recreated(text).image) == text
