"""Plans of schema changes: they lead to the wanted schema, and mark dangerous changes."""

from typing import Any

import msgspec
import pytest

from stele.domain.base import Rejection
from stele.domain.commands import AlterSchema, Envelope
from stele.domain.ddl.plan import (
    Mark,
    SchemaPlan,
    managed_keyspaces,
    only_accepted,
    plan_schema,
    without,
)
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.requests import named
from stele.runtime.answers.of_image import schema_answer
from stele.words.cql import statements
from stele.words.cql_parser import parse_cql
from tests.domain.history import World
from tests.domain.schema.examples import PK, alter, cluster

ID = c.ColumnDefinition(name="id", type="uuid", kind=PK)

BEFORE = """
CREATE TYPE library.address (street text);
CREATE TYPE library.person (name text, home frozen<address>);
CREATE TYPE library.unused (a int);
CREATE TABLE library.songs (
    artist text, year int, label text STATIC, by person, tags map<text, text>,
    PRIMARY KEY (artist, year)
) WITH comment = 'songs' AND gc_grace_seconds = 5;
CREATE TABLE library.plays (id uuid PRIMARY KEY, song text, old text);
CREATE INDEX ON library.plays (song);
CREATE MATERIALIZED VIEW library.by_year AS SELECT * FROM library.songs
    WHERE artist IS NOT NULL AND year IS NOT NULL PRIMARY KEY (year, artist);
CREATE FUNCTION library.plus (a int, b int) RETURNS NULL ON NULL INPUT
    RETURNS int LANGUAGE lua AS 'return a + b';
CREATE FUNCTION library.minus (a int, b int) RETURNS NULL ON NULL INPUT
    RETURNS int LANGUAGE lua AS 'return a - b';
CREATE AGGREGATE library.total (int) SFUNC plus STYPE int INITCOND 0;
"""
AFTER = """
CREATE KEYSPACE radio WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 2};
CREATE TYPE radio.host (name text);
CREATE TABLE radio.shows (id uuid PRIMARY KEY, host host);
CREATE TYPE library.address (street text, city text);
CREATE TYPE library.person (full_name text, home frozen< address >);
CREATE TABLE library.songs (
    artist text, year int, label text STATIC, by person, tags map<text,text>, title varchar,
    PRIMARY KEY ((artist), year)
) WITH comment = 'all songs';
CREATE INDEX ON library.songs (keys(tags));
CREATE TABLE library.plays (play_id uuid PRIMARY KEY, song text);
CREATE INDEX ON library.plays (song);
CREATE MATERIALIZED VIEW library.by_year AS SELECT * FROM library.songs
    WHERE artist IS NOT NULL AND year IS NOT NULL PRIMARY KEY (year, artist)
    WITH comment = 'by year';
CREATE FUNCTION library.plus (a int, b int) RETURNS NULL ON NULL INPUT
    RETURNS int LANGUAGE lua AS 'return b + a';
CREATE AGGREGATE library.total (int) SFUNC plus STYPE int INITCOND 1;
"""


def texts(image: Image) -> list[str]:
    return [each.text for each in statements(schema_answer(image))]


def decided(image: Image, command: AlterSchema) -> Image | Rejection:
    """Return the image after a command, whose request id is of its changes."""
    envelope = Envelope(request_id=named(str(command.changes)), command=command)
    found = decide(image, envelope, 0)
    return found if isinstance(found, Rejection) else apply_facts(image, found)


def wanted_image(world: World, changes: tuple[c.AnyChange, ...]) -> Image:
    """Return the image with the wanted schema only."""
    after = decided(without(world.image, changes), AlterSchema(changes))
    assert not isinstance(after, Rejection), after
    return after


def planned(world: World, cql: str) -> SchemaPlan:
    return plan_of(world, parse_cql(cql))


def plan_of(world: World, changes: tuple[c.AnyChange, ...]) -> SchemaPlan:
    after, managed = wanted_image(world, changes), managed_keyspaces(changes)
    return only_accepted(
        plan_schema(world.image.schema, after.schema, managed), world.image, decided
    )


@pytest.fixture
def world() -> World:
    found = cluster()
    assert alter(found, *parse_cql(BEFORE)) is None
    return found


def test_plan_leads_to_the_wanted_schema_in_one_batch(world: World) -> None:
    plan, after = planned(world, AFTER), wanted_image(world, parse_cql(AFTER))
    assert plan.rest == ()
    assert alter(world, *(each.change for each in plan.changes)) is None
    assert sorted(texts(world.image)) == sorted(texts(after))
    assert planned(world, AFTER) == SchemaPlan((), ())


def test_plan_for_an_exported_schema_is_empty(world: World) -> None:
    exported = "\n".join(texts(world.image))
    assert planned(world, exported) == SchemaPlan((), ())


def test_opaque_tables_that_are_not_named_are_left_unchanged(world: World) -> None:
    exported = "\n".join(texts(world.image))
    assert alter(world, c.TableCreation(name="library.opaque")) is None
    assert planned(world, exported) == SchemaPlan((), ())


def test_wanted_opaque_and_colocated_tables_are_created() -> None:
    world = cluster()
    wanted = (
        c.KeyspaceCreation(name="radio", replication={"dc1": 2}, tablets=True),
        c.TableCreation(name="radio.songs"),
        c.TableCreation(name="radio.labels", colocated_with="radio.songs"),
    )
    plan = plan_of(world, wanted)
    assert tuple(each.change for each in plan.changes) == wanted
    assert alter(world, *wanted) is None
    assert plan_of(world, wanted) == SchemaPlan((), ())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"columns": (ID,)}, "Table radio.labels has no columns now"),
        (
            {"colocated_with": "radio.songs"},
            "Table radio.labels is not co-located with radio.songs",
        ),
    ],
)
def test_table_that_cannot_become_typed_or_colocated_is_named(
    changed: dict[str, Any], said: str
) -> None:
    world = cluster()
    labels = c.TableCreation(name="radio.labels")
    others = (
        c.KeyspaceCreation(name="radio", replication={"dc1": 2}, tablets=True),
        c.TableCreation(name="radio.songs"),
    )
    assert alter(world, *others, labels) is None
    plan = plan_of(world, (*others, msgspec.structs.replace(labels, **changed)))
    assert plan.changes == ()
    assert [text.split(":")[0] for text in plan.rest] == [said]


def test_keyspaces_that_are_not_named_are_left_unchanged(world: World) -> None:
    plan = planned(world, "CREATE KEYSPACE radio WITH replication = {'dc1': 1};")
    assert [type(each.change) for each in plan.changes] == [c.KeyspaceCreation]


def test_dangerous_changes_are_marked(world: World) -> None:
    marks = {
        (type(each.change), getattr(each.change, "name", "")): each.mark
        for each in planned(world, AFTER).changes
        if each.mark
    }
    assert marks == {
        (c.TypeRemoval, "library.unused"): Mark.DESTRUCTIVE,
        (c.TypeAlteration, "library.person"): Mark.INCOMPATIBLE,
        (c.TableAlteration, "library.plays"): Mark.DESTRUCTIVE,
        (c.IndexCreation, "songs_tags_idx"): Mark.EXPENSIVE,
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tags map<text, text>", "tags int", "the type and kind of tags cannot change"),
        ("id uuid PRIMARY KEY", "id int PRIMARY KEY", "another primary key"),
        ("person (name text", "person (name int", "fields cannot be dropped"),
        ("PRIMARY KEY (year, artist)", "PRIMARY KEY ((year, artist))", "View library.by_year can"),
    ],
)
def test_differences_that_no_batch_can_make_are_named(
    world: World, old: str, new: str, said: str
) -> None:
    assert old in BEFORE
    [text] = planned(world, BEFORE.replace(old, new)).rest
    assert said in text


def test_drops_with_dependents_are_left_for_the_next_plan(world: World) -> None:
    """The view must be dropped before its table, and the table before its type."""
    plan = planned(world, "CREATE TYPE library.unused (a int);")
    assert [text.split(" can be")[0] for text in plan.rest] == [
        "Type library.person",
        "Type library.address",
        "Table library.songs",
    ]
    assert alter(world, *(each.change for each in plan.changes)) is None
    world.run()
    plan = planned(world, "CREATE TYPE library.unused (a int);")
    assert alter(world, *(each.change for each in plan.changes)) is None
    world.run()
    plan = planned(world, "CREATE TYPE library.unused (a int);")
    assert alter(world, *(each.change for each in plan.changes)) is None
    assert plan.rest == ()
    assert texts(world.image)[1:] == ["CREATE TYPE library.unused (\n    a int\n);"]


TABLE = "CREATE TABLE library.t ({});"
VIEW = (
    "CREATE MATERIALIZED VIEW library.v AS SELECT a, b FROM library.t"
    " WHERE a IS NOT NULL AND b IS NOT NULL PRIMARY KEY (b, a);"
)
FUNCTION = (
    "CREATE FUNCTION library.f (x int) CALLED ON NULL INPUT RETURNS {} LANGUAGE lua AS 'return x';"
)
INDEXED = "CREATE TABLE library.{0} (a int PRIMARY KEY, b int);"


@pytest.mark.parametrize(
    ("have", "wanted", "said"),
    [
        (
            TABLE.format("a int, b int, PRIMARY KEY (a, b)"),
            TABLE.format("b int, a int, PRIMARY KEY (b, a)"),
            "Cannot rename column a of library.t to b",
        ),
        (
            "CREATE TYPE library.p (a int, b int);",
            "CREATE TYPE library.p (b int, a int);",
            "Cannot rename field a of type library.p to b",
        ),
        (FUNCTION.format("int"), FUNCTION.format("text"), "Cannot replace function f(int)"),
        (
            TABLE.format("a int PRIMARY KEY, b int, x int") + VIEW,
            TABLE.format("a int PRIMARY KEY, b int") + VIEW,
            "Cannot drop column x of library.t",
        ),
        (
            "CREATE TYPE library.p (a int); CREATE TABLE library.t (a frozen<p> PRIMARY KEY);",
            "CREATE TYPE library.p (a int, b int);",
            "Cannot add field b to type library.p",
        ),
        (
            INDEXED.format("t") + INDEXED.format("u") + "CREATE INDEX i ON library.t (b);",
            INDEXED.format("u") + "CREATE INDEX i ON library.u (b);",
            "Index 'library.i' exists already",
        ),
    ],
)
def test_rejected_changes_are_differences_and_the_others_can_be_applied(
    have: str, wanted: str, said: str
) -> None:
    world = cluster()
    assert alter(world, *parse_cql(have)) is None
    plan = planned(world, wanted + "CREATE TYPE library.other (a int);")
    [text] = plan.rest
    assert said in text
    assert c.TypeCreation in [type(each.change) for each in plan.changes]
    assert alter(world, *(each.change for each in plan.changes)) is None


def test_statements_other_than_create_are_refused() -> None:
    with pytest.raises(ValueError, match="CREATE statements only, and not ALTER TABLE"):
        managed_keyspaces(parse_cql("ALTER TABLE library.songs ADD a int;"))


def test_plan_is_preserved_by_encoding(world: World) -> None:
    changes = tuple(each.change for each in planned(world, AFTER).changes)
    written = msgspec.json.encode(changes)
    assert msgspec.json.decode(written, type=tuple[c.AnyChange, ...]) == changes
