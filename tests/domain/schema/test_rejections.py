"""Each rejection of a schema change: its code, and the dependency that its message names."""

from functools import cache

import msgspec
import pytest

from stele.domain.commands import AlterSchema, CreateKeyspace, CreateTable, Envelope, Rejection
from stele.domain.decide import decide
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.requests import named
from stele.domain.model.schema_objects import ClusteringOrder, IndexTarget, TypeField
from tests.domain.epochs import AT_MS
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

NOT_NULL = "IS NOT NULL"


def view(
    name: str = "v2",
    base: str = "songs",
    keys: tuple[str, ...] = ("artist",),
    clustering: tuple[str, ...] = ("id", "track"),
    where: tuple[c.ViewCondition, ...] | None = None,
    **others: object,
) -> c.ViewCreation:
    names = (*keys, *clustering)
    return c.ViewCreation(
        name=f"library.{name}",
        base=f"library.{base}",
        partition_key=keys,
        clustering=tuple(map(c.ViewKey, clustering)),
        where=tuple(map(c.ViewCondition, names)) if where is None else where,
        **others,  # type: ignore[arg-type]
    )


SCHEMA: tuple[c.AnyChange, ...] = (
    user_type("address", street="text", tags="frozen<set<text>>"),
    user_type("person", name="text", home="frozen<address>"),
    user_type("loose", tags="list<text>"),
    user_type("key", a="int"),
    user_type("title", a="int"),
    user_type("wide", **{f"f{number}": "int" for number in range(250)}),
    user_type("deep0", a="int"),
    *(user_type(f"deep{n}", a=f"frozen<deep{n - 1}>") for n in range(1, 8)),
    table(
        "songs",
        column("track", "int", CK),
        column("album", "text", STATIC),
        column("artist", "text"),
        column("year", "int"),
        column("labels", "map<text, text>"),
        column("frozen_labels", "frozen<map<text, text>>"),
        column("tags", "set<text>"),
        column("place", "address"),
        column("length", "duration"),
        column("old", "text"),
        column("old_static", "text", STATIC),
    ),
    c.TableAlteration(name="library.songs", drop=("old", "old_static")),
    table("people", column("who", "frozen<person>")),
    c.TableCreation(
        name="library.keyed", columns=(column("id", "frozen<key>", PK), column("v", "int"))
    ),
    table("sorted", column("by", "frozen<title>", CK)),
    table("counts", column("n", "counter"), column("m", "counter")),
    c.TableAlteration(name="library.counts", drop=("m",)),
    table("short", column("v", "int"), parameters={"gc_grace_seconds": "0"}),
    c.IndexCreation(table="library.songs", column="artist", name="by_artist"),
    c.IndexCreation(table="library.people", column="who", name="by_who"),
    table("viewed", column("a", "text"), column("b", "text")),
    view("viewed_by_a", "viewed", ("a",), ("id",)),
    table("bare", column("by", "int", CK)),
    view("bare_by", "bare", ("by",), ("id",)),
    table("indexed", column("by", "int", CK)),
    c.IndexCreation(table="library.indexed", column="by", name="by_by"),
    function("plus", "int", "int", "int"),
    function("plus", "text", "text", "text"),
    function("strict", "int", "int", "int", on_null=False),
    function("where_is", "text", "address"),
    function("collect", "address", "address", "text"),
    c.AggregateCreation(
        name="library.total",
        argument_types=("int",),
        state_function="plus",
        state_type="int",
        initial_condition="0",
    ),
    c.AggregateCreation(
        name="library.places",
        argument_types=("text",),
        state_function="collect",
        state_type="address",
        initial_condition="{street: ''}",
    ),
)


@cache
def image() -> Image:
    world = cluster()
    assert world.apply(CreateKeyspace("other", {"dc1": 3})) is None
    assert world.apply(CreateTable("library.opaque")) is None
    refused = alter(world, *SCHEMA)
    assert refused is None, refused
    return world.image


def key(*columns: c.ColumnDefinition) -> c.TableCreation:
    return c.TableCreation(name="library.t", columns=columns)


def altered(name: str, **others: object) -> c.TableAlteration:
    return c.TableAlteration(name=f"library.{name}", **others)  # type: ignore[arg-type]


def added(name: str, *columns: c.ColumnDefinition) -> c.TableAlteration:
    return altered(name, add=columns)


def index(column_name: str, table_name: str = "songs", **others: object) -> c.IndexCreation:
    return c.IndexCreation(table=f"library.{table_name}", column=column_name, **others)  # type: ignore[arg-type]


def aggregate(**others: object) -> c.AggregateCreation:
    given: dict[str, object] = {
        "name": "library.sum",
        "argument_types": ("int",),
        "state_function": "plus",
        "state_type": "int",
        "initial_condition": "0",
        **others,
    }
    return c.AggregateCreation(**given)  # type: ignore[arg-type]


def condition(name: str, operator: str, value: str = "") -> tuple[c.ViewCondition, ...]:
    return (
        c.ViewCondition("artist"),
        c.ViewCondition("id"),
        c.ViewCondition(name, operator, value),
    )


ROWS: tuple[tuple[c.AnyChange, str, str], ...] = (
    # Keyspaces.
    (c.KeyspaceCreation(name="library", replication={"dc1": 3}), "keyspace_exists", "library"),
    (c.KeyspaceRemoval(name="gone"), "unknown_keyspace", "gone"),
    # Tables: names and keys.
    (table("songs"), "table_exists", "library.songs"),
    (
        c.TableCreation(name="gone.t", columns=(column("id", "int", PK),)),
        "unknown_keyspace",
        "gone",
    ),
    (c.TableCreation(name="library.a b"), "bad_name", "a b"),
    (key(column("", "int", PK)), "bad_name", "''"),
    (key(column("a", "int")), "no_primary_key", "library.t"),
    (key(column("a", "int", PK), column("a", "text")), "named_twice", "'a'"),
    (key(column("a", "list<int>", PK)), "bad_key_type", "collection type list<int>"),
    (key(column("a", "address", PK)), "bad_key_type", "user-defined type address"),
    (key(column("a", "counter", PK)), "bad_key_type", "counter"),
    (key(column("i", "int", PK), column("a", "duration", CK)), "bad_key_type", "duration"),
    (table("t", column("s", "int", STATIC)), "static_without_clustering", "library.t"),
    (
        table("t", msgspec.structs.replace(column("v", "int"), order=ClusteringOrder.DESC)),
        "not_clustering_column",
        "'v'",
    ),
    (table("t", column("n", "counter"), column("v", "int")), "mixed_counters", "column v"),
    (c.TableCreation(name="library.t", parameters={"comment": "c"}), "opaque_table", "library.t"),
    # Types of columns.
    (table("t", column("a", "strng")), "unknown_type", "strng"),
    (table("t", column("a", "list<int")), "bad_type", "expected '>'"),
    (table("t", column("a", "map<int>")), "bad_type", "expected 2 types"),
    (table("t", column("a", "int>")), "bad_type", "expected the end"),
    (table("t", column("a", "list<int;>")), "bad_type", "unexpected character at 8"),
    (table("t", column("a", "frozen<int>")), "bad_type", "got int"),
    (table("t", column("a", "list<list<int>>")), "bad_type", "Non-frozen collections"),
    (table("t", column("a", "list<address>")), "bad_type", "Non-frozen user types"),
    (table("t", column("a", "list<counter>")), "bad_type", "Counters"),
    (table("t", column("a", "set<duration>")), "bad_type", "inside sets"),
    (table("t", column("a", "map<duration, int>")), "bad_type", "map keys"),
    (table("t", column("a", "vector<float, 0>")), "bad_type", "1 to 8192"),
    (table("t", column("a", "loose")), "bad_type", "field tags"),
    (table("t", column("a", "other.address")), "bad_type", "other.address"),
    (table("t", column("a", "list<" * 20 + "int" + ">" * 20)), "bad_type", "nested deeper"),
    # Parameters.
    (table("t", parameters={"compacton": "x"}), "unknown_parameter", "compacton"),
    (table("t", parameters={"gc_grace_seconds": "-1"}), "bad_parameter", "gc_grace_seconds"),
    (table("t", parameters={"default_time_to_live": "630720001"}), "bad_parameter", "630720001"),
    (table("t", parameters={"bloom_filter_fp_chance": "0"}), "bad_parameter", "bloom"),
    (table("t", parameters={"crc_check_chance": "1.5"}), "bad_parameter", "crc_check_chance"),
    (table("t", parameters={"compaction": "{'enabled': 'true'}"}), "bad_parameter", "compaction"),
    (table("t", parameters={"caching": "{'keys' 'ALL'}"}), "bad_parameter", "caching"),
    (table("t", parameters={"cdc": "{'on': 'true'}"}), "bad_parameter", "cdc"),
    (table("t", parameters={"cdc": "{'ttl': '59'}"}), "bad_parameter", "ttl of cdc is '59'"),
    (table("t", parameters={"read_repair": "maybe"}), "bad_parameter", "read_repair"),
    (table("t", parameters={"speculative_retry": "soon"}), "bad_parameter", "speculative"),
    (table("t", parameters={"min_index_interval": "4096"}), "bad_parameter", "2048"),
    (
        table("t", column("n", "counter"), parameters={"default_time_to_live": "1"}),
        "bad_parameter",
        "counters",
    ),
    (altered("counts", parameters={"default_time_to_live": "1"}), "bad_parameter", "counters"),
    # ALTER TABLE.
    (added("gone", column("a", "int")), "unknown_table", "library.gone"),
    (added("opaque", column("a", "int")), "opaque_table", "library.opaque"),
    (added("viewed_by_a", column("c", "int")), "is_view", "viewed_by_a"),
    (added("songs", column("artist", "int")), "column_exists", "artist"),
    (added("songs", column("c", "int"), column("c", "int")), "named_twice", "'c'"),
    (added("songs", column("c", "int", CK)), "primary_key_column", "PRIMARY KEY"),
    (added("people", column("s", "int", STATIC)), "static_without_clustering", "people"),
    (added("songs", column("n", "counter")), "mixed_counters", "counter column n"),
    (added("counts", column("v", "int")), "mixed_counters", "column v"),
    (added("songs", column("old", "int")), "dropped_column", "its type was text"),
    (added("songs", column("old", "text", STATIC)), "dropped_column", "its kind was regular"),
    (added("songs", column("old_static", "text")), "dropped_column", "its kind was static"),
    (added("counts", column("m", "counter")), "dropped_column", "counter"),
    (altered("songs", drop=("nothing",)), "unknown_column", "nothing"),
    (altered("songs", drop=("year", "year")), "named_twice", "year"),
    (altered("songs", drop=("track",)), "primary_key_column", "track"),
    (altered("songs", drop=("artist",)), "has_indexes", "by_artist"),
    (altered("viewed", drop=("b",)), "has_views", "library.viewed_by_a"),
    (altered("songs", rename={"nothing": "x"}), "unknown_column", "nothing"),
    (altered("songs", rename={"year": "y"}), "not_primary_key_column", "year"),
    (altered("songs", rename={"id": "year"}), "column_exists", "year"),
    (altered("songs", rename={"id": ""}), "bad_name", "''"),
    (altered("songs", types={"year": "text"}), "incompatible_type", "from int to text"),
    (altered("songs", types={"nothing": "text"}), "unknown_column", "nothing"),
    # DROP TABLE.
    (c.TableRemoval(name="library.gone"), "unknown_table", "library.gone"),
    (c.TableRemoval(name="library.viewed"), "has_views", "library.viewed_by_a"),
    (c.TableRemoval(name="library.viewed_by_a"), "is_view", "library.viewed_by_a"),
    # Types.
    (user_type("address", a="int"), "type_exists", "library.address"),
    (user_type("bigint", a="int"), "bad_name", "bigint"),
    (user_type("a b", a="int"), "bad_name", "a b"),
    (user_type("t"), "no_fields", "library.t"),
    (user_type("t", a="counter"), "bad_type", "counter"),
    (user_type("t", a="address"), "bad_type", "non-frozen user type address"),
    (user_type("t", a="gone"), "unknown_type", "gone"),
    (
        c.TypeCreation(name="library.t", fields=(TypeField("a", "int"), TypeField("a", "text"))),
        "named_twice",
        "'a'",
    ),
    (c.TypeAlteration(name="library.gone"), "unknown_type", "library.gone"),
    (
        c.TypeAlteration(name="library.person", add=(TypeField("name", "int"),)),
        "named_twice",
        "'name'",
    ),
    (
        c.TypeAlteration(name="library.loose", add=(TypeField("l", "frozen<loose>"),)),
        "circular_type",
        "library.loose",
    ),
    (
        c.TypeAlteration(name="library.address", add=(TypeField("p", "frozen<person>"),)),
        "circular_type",
        "library.address",
    ),
    (
        c.TypeAlteration(name="library.key", add=(TypeField("b", "int"),)),
        "type_in_primary_key",
        "library.keyed",
    ),
    (
        c.TypeAlteration(name="library.title", add=(TypeField("b", "int"),)),
        "type_in_primary_key",
        "library.sorted",
    ),
    (
        c.TypeCreation(name="library.t", fields=(TypeField("a", "frozen<deep7>"),)),
        "bad_type",
        "deeper than 16",
    ),
    (
        c.TypeAlteration(name="library.deep0", add=(TypeField("b", "frozen<list<int>>"),)),
        "bad_type",
        "deeper than 16",
    ),
    (
        c.TypeCreation(
            name="library.t", fields=(TypeField("a", f"tuple<{', '.join(['wide'] * 40)}>"),)
        ),
        "bad_type",
        "more than 8192",
    ),
    (
        c.TypeAlteration(
            name="library.wide", add=(TypeField("b", f"tuple<{', '.join(['int'] * 8000)}>"),)
        ),
        "bad_type",
        "more than 8192",
    ),
    (c.TypeAlteration(name="library.person", rename={"x": "y"}), "unknown_field", "'x'"),
    (c.TypeAlteration(name="library.person", rename={"name": "home"}), "field_exists", "home"),
    (
        c.TypeAlteration(name="library.person", types={"name": "int"}),
        "incompatible_type",
        "from text to int",
    ),
    (
        c.TypeAlteration(name="library.address", add=(TypeField("zip", "int"),)),
        "type_in_use",
        "places(text)",
    ),
    (c.TypeRemoval(name="library.gone"), "unknown_type", "library.gone"),
    (c.TypeRemoval(name="library.address"), "type_in_use", "where_is(address)"),
    (c.TypeRemoval(name="library.person"), "type_in_use", "tables people"),
    # Functions.
    (function("plus", "int", "int", "int"), "function_exists", "plus(int, int)"),
    (function("t", "int", "frozen<list<int>>"), "bad_type", "remove the frozen<> modifier"),
    (function("t", "counter", "int"), "bad_type", "counters"),
    (function("t", "int", "gone"), "unknown_type", "gone"),
    (function("total", "int", "int"), "aggregate_exists", "total(int)"),
    (function("a b", "int"), "bad_name", "a b"),
    (
        c.FunctionCreation(
            name="library.f", return_type="int", language="no such", body="", or_replace=True
        ),
        "bad_function",
        "library.f",
    ),
    (
        c.FunctionCreation(name="library.f", return_type="int", language="lüa", body=""),
        "bad_function",
        "library.f",
    ),
    (
        c.FunctionCreation(
            name="library.f",
            return_type="int",
            language="lua",
            body="",
            or_replace=True,
            if_not_exists=True,
        ),
        "contradiction",
        "OR REPLACE",
    ),
    (
        c.FunctionCreation(
            name="library.plus",
            arguments=(TypeField("a", "int"), TypeField("b", "int")),
            return_type="text",
            language="lua",
            body="",
            called_on_null_input=True,
            or_replace=True,
        ),
        "incompatible_type",
        "returns int",
    ),
    (
        c.FunctionCreation(
            name="library.plus",
            arguments=(TypeField("a", "int"), TypeField("b", "int")),
            return_type="int",
            language="lua",
            body="",
            or_replace=True,
        ),
        "incompatible_function",
        "CALLED ON NULL INPUT",
    ),
    (c.FunctionRemoval(name="library.gone"), "unknown_function", "library.gone"),
    (c.FunctionRemoval(name="library.total"), "unknown_function", "library.total"),
    (
        c.FunctionRemoval(name="library.plus", argument_types=("int",)),
        "unknown_function",
        "library.plus",
    ),
    (c.FunctionRemoval(name="library.plus"), "ambiguous_function", "plus(text, text)"),
    (
        c.FunctionRemoval(name="library.plus", argument_types=("int", "int")),
        "function_in_use",
        "total(int)",
    ),
    # Aggregates.
    (aggregate(name="library.total"), "aggregate_exists", "total(int)"),
    (
        aggregate(name="library.plus", argument_types=("int", "int"), state_function="tri"),
        "function_exists",
        "plus",
    ),
    (aggregate(state_function="gone"), "unknown_function", "gone(int, int)"),
    (aggregate(final_function="gone"), "unknown_function", "gone(int)"),
    (aggregate(state_function="strict", initial_condition=""), "no_initial_condition", "strict"),
    (
        aggregate(argument_types=("text",), state_type="address", state_function="where"),
        "unknown_function",
        "where(address, text)",
    ),
    (aggregate(state_type="frozen<list<int>>"), "bad_type", "frozen<> modifier"),
    (aggregate(initial_condition="0; DROP KEYSPACE x"), "bad_initial_condition", "DROP"),
    (aggregate(initial_condition="\0"), "bad_initial_condition", "'\0'"),
    (c.AggregateRemoval(name="library.plus"), "unknown_aggregate", "library.plus"),
    # Indexes.
    (index("artist", name="by_artist"), "index_exists", "by_artist"),
    (index("year", name="by_who"), "index_exists", "by_who"),
    (index("artist", name="other_name"), "index_exists", "by_artist"),
    (index("year", name="a b"), "bad_name", "a b"),
    (index("nothing"), "unknown_column", "nothing"),
    (index("id"), "only_partition_key", "id"),
    (index("length"), "bad_type", "duration"),
    (index("place"), "bad_type", "non-frozen user type address"),
    (index("n", "counts"), "counter_table", "library.counts"),
    (index("a", "viewed_by_a"), "is_view", "viewed_by_a"),
    (index("a", "opaque"), "opaque_table", "opaque"),
    (index("a", "gone"), "unknown_table", "gone"),
    (index("frozen_labels"), "bad_index_target", "frozen collection"),
    (index("frozen_labels", target=IndexTarget.KEYS), "bad_index_target", "frozen collection"),
    (index("labels", target=IndexTarget.FULL), "bad_index_target", "no frozen collection"),
    (index("tags", target=IndexTarget.ENTRIES), "bad_index_target", "no map"),
    (index("year", target=IndexTarget.VALUES), "bad_index_target", "no collection"),
    (c.IndexRemoval(name="library.gone"), "unknown_index", "library.gone"),
    # Views.
    (view("songs"), "table_exists", "songs"),
    (view(base="gone"), "unknown_table", "gone"),
    (view(base="opaque"), "opaque_table", "opaque"),
    (view(base="viewed_by_a", clustering=("id",), keys=("b",)), "is_view", "viewed_by_a"),
    (view(base="counts", clustering=(), keys=("id",)), "counter_table", "counts"),
    (view(base="short", clustering=("id",), keys=("v",)), "bad_parameter", "gc_grace_seconds"),
    (view(keys=(), clustering=("id", "track")), "no_primary_key", "v2"),
    (view(clustering=("id",)), "no_primary_key", "track"),
    (view(clustering=("id", "track", "id")), "named_twice", "'id'"),
    (view(clustering=("id", "track", "year")), "bad_view_key", "artist, year"),
    (view(keys=("album",)), "static_column", "album"),
    (view(keys=("length",)), "bad_key_type", "duration"),
    (view(keys=("labels",)), "bad_key_type", "map<text, text>"),
    (view(keys=("nothing",)), "unknown_column", "nothing"),
    (view(columns=("nothing",)), "unknown_column", "nothing"),
    (view(columns=("album",)), "static_column", "album"),
    (view(columns=("year", "year")), "named_twice", "year"),
    (view(where=condition("id", NOT_NULL)), "bad_view_condition", "track"),
    (view(where=condition("year", "=", "1")), "bad_view_condition", "year"),
    (view(where=condition("track", "~", "1")), "bad_view_condition", "track ~ 1"),
    (view(where=condition("track", "=")), "bad_view_condition", "track ="),
    (view(where=condition("track", "=", "1; DROP")), "bad_view_condition", "'1; DROP'"),
    (view(where=condition("track", "IN", "1")), "bad_view_condition", "'1'"),
    (altered("viewed", parameters={"gc_grace_seconds": "0"}), "bad_parameter", "viewed_by_a"),
    (altered("bare", add=(column("n", "counter"),)), "counter_table", "library.bare"),
    (altered("indexed", add=(column("n", "counter"),)), "counter_table", "library.indexed"),
    (view(parameters={"default_time_to_live": "5"}), "bad_parameter", "materialized view"),
    (
        c.ViewCreation(name="other.v", base="library.songs", partition_key=("id",)),
        "other_keyspace",
        "other.v",
    ),
    (c.ViewAlteration(name="library.songs", parameters={}), "not_a_view", "library.songs"),
    (c.ViewAlteration(name="library.gone", parameters={}), "unknown_table", "library.gone"),
    (c.ViewRemoval(name="library.songs"), "not_a_view", "library.songs"),
    (c.ViewRemoval(name="library.gone"), "unknown_table", "library.gone"),
)


@pytest.mark.parametrize(
    ("change", "code", "names"),
    ROWS,
    ids=[f"{n}-{type(row[0]).__name__}-{row[1]}" for n, row in enumerate(ROWS)],
)
def test_change_is_rejected_and_the_message_names_the_dependency(
    change: c.AnyChange, code: str, names: str
) -> None:
    envelope = Envelope(request_id=named("r"), command=AlterSchema((change,)), actor="ada")
    refused = decide(image(), envelope, AT_MS)
    assert isinstance(refused, Rejection), refused
    assert refused.code == code, refused
    assert names in refused.message, refused


OF_EXISTENCE = {
    c.KeyspaceRemoval: c.KeyspaceRemoval(name="gone", if_exists=True),
    c.TableAlteration: altered("gone", if_exists=True, drop=("a",)),
    c.TableRemoval: c.TableRemoval(name="library.gone", if_exists=True),
    c.TypeAlteration: c.TypeAlteration(name="library.gone", if_exists=True),
    c.TypeRemoval: c.TypeRemoval(name="library.gone", if_exists=True),
    c.FunctionRemoval: c.FunctionRemoval(name="gone.gone", if_exists=True),
    c.AggregateRemoval: c.AggregateRemoval(name="library.gone", if_exists=True),
    c.IndexRemoval: c.IndexRemoval(name="library.gone", if_exists=True),
    c.ViewAlteration: c.ViewAlteration(name="library.gone", parameters={}, if_exists=True),
    c.ViewRemoval: c.ViewRemoval(name="library.gone", if_exists=True),
    c.KeyspaceCreation: c.KeyspaceCreation(name="library", if_not_exists=True),
    c.TableCreation: table("songs", if_not_exists=True),
    c.TypeCreation: c.TypeCreation(name="library.address", fields=(), if_not_exists=True),
    c.FunctionCreation: c.FunctionCreation(
        name="library.plus",
        arguments=(TypeField("a", "int"), TypeField("b", "int")),
        return_type="int",
        language="lua",
        body="",
        if_not_exists=True,
    ),
    c.AggregateCreation: aggregate(name="library.total", if_not_exists=True),
    c.IndexCreation: index("artist", name="by_artist", if_not_exists=True),
    c.ViewCreation: view("viewed_by_a", if_not_exists=True),
}


@pytest.mark.parametrize("kind", c.CHANGES, ids=lambda kind: kind.__name__)
def test_change_with_if_exists_or_if_not_exists_changes_nothing(
    kind: type[c.SchemaChange],
) -> None:
    change = OF_EXISTENCE[kind]
    envelope = Envelope(request_id=named("r"), command=AlterSchema((change,)))  # type: ignore[arg-type]
    assert decide(image(), envelope, AT_MS) == ()


def test_conditional_add_and_drop_of_columns_change_nothing() -> None:
    change = altered(
        "songs",
        add=(column("year", "int"),),
        drop=("nothing",),
        add_if_not_exists=True,
        drop_if_exists=True,
    )
    assert (
        decide(image(), Envelope(request_id=named("r"), command=AlterSchema((change,))), AT_MS)
        == ()
    )


def test_typed_objects_need_the_feature_and_opaque_tables_do_not() -> None:
    world = cluster()
    before = world.history.images[-2]
    assert not before.features.enabled
    typed, opaque = (
        decide(before, Envelope(request_id=named("r"), command=AlterSchema((change,))), AT_MS)
        for change in (table("t"), c.TableCreation(name="library.t"))
    )
    assert isinstance(typed, Rejection) and typed.code == "feature_not_enabled"
    assert not isinstance(opaque, Rejection)
