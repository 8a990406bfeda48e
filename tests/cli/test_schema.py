"""``stele schema``: what it prints and sends."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.domain.commands import AlterSchema
from stele.domain.model import schema as c
from stele.domain.model.schema_objects import ClusteringOrder, IndexTarget
from stele.domain.view import epoch_view
from stele.metadata_log.pages import dump_of
from stele.runtime.answers.of_image import schema_answer
from stele.words.cql import statements
from tests.cli.conftest import Server, Stele
from tests.cli.test_changes import ACCEPTED, sent
from tests.domain.history import World
from tests.domain.schema.examples import (
    CK,
    PK,
    STATIC,
    alter,
    cluster,
    column,
    function,
    user_type,
)

BATCH: tuple[c.AnyChange, ...] = (
    user_type("person", name="text", home="frozen<address>"),
    c.TableCreation(
        name="library.songs",
        columns=(
            column("artist", "text", PK),
            column("year", "int", PK),
            c.ColumnDefinition(name="Track", type="int", kind=CK, order=ClusteringOrder.DESC),
            column("label", "text", STATIC),
            column("by", "person"),
            column("tags", "map<text, text>"),
        ),
        parameters={"comment": "it's", "gc_grace_seconds": "5", "cdc": "{'enabled': 'true'}"},
    ),
    c.IndexCreation(table="library.songs", column="tags", target=IndexTarget.KEYS),
    c.ViewCreation(
        name="library.by_track",
        base="library.songs",
        columns=("label",),
        partition_key=("Track",),
        clustering=(c.ViewKey("artist"), c.ViewKey("year")),
        where=(
            c.ViewCondition("Track"),
            c.ViewCondition("artist"),
            c.ViewCondition("year", ">", "1900"),
        ),
    ),
    function("plus", "int", "int", "int"),
    c.AggregateCreation(
        name="library.total",
        argument_types=("int",),
        state_function="plus",
        state_type="int",
        initial_condition="0",
    ),
)
CQL = """\
CREATE KEYSPACE library WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '3'};
CREATE TYPE library.address (
    street text
);
CREATE TYPE library.person (
    name text,
    home frozen<address>
);
CREATE TABLE library.songs (
    artist text,
    year int,
    "Track" int,
    label text STATIC,
    "by" person,
    tags map<text, text>,
    PRIMARY KEY ((artist, year), "Track")
) WITH CLUSTERING ORDER BY ("Track" DESC)
    AND cdc = {'enabled': 'true'}
    AND comment = 'it''s'
    AND gc_grace_seconds = 5;
CREATE INDEX songs_tags_idx ON library.songs (keys(tags));
CREATE MATERIALIZED VIEW library.by_track AS
    SELECT "Track", artist, year
    FROM library.songs
    WHERE "Track" IS NOT NULL
    AND artist IS NOT NULL
    AND year > 1900
    PRIMARY KEY ("Track", artist, year);
CREATE FUNCTION library.plus (a0 int, a1 int)
    CALLED ON NULL INPUT
    RETURNS int
    LANGUAGE lua
    AS $$return 1$$;
CREATE AGGREGATE library.total (int)
    SFUNC plus
    STYPE int
    INITCOND 0;
"""


def library() -> World:
    world = cluster()
    assert alter(world, user_type("address", street="text")) is None
    view = msgspec.structs.replace(BATCH[3], columns=("artist",))
    assert alter(world, *BATCH[:3], view, *BATCH[4:]) is None
    return world


def answer(world: World, epoch: int = 0) -> Any:
    image = world.images[epoch] if epoch else world.image
    return msgspec.to_builtins(schema_answer(image))


def test_schema_is_printed_as_statements_in_executable_order() -> None:
    world = library()
    assert "".join(f"{each.text}\n" for each in statements(schema_answer(world.image))) == CQL


def test_schema_of_an_epoch_is_shown_with_its_version(server: Server, stele: Stele) -> None:
    world = library()
    server.answer("GET", "/v1/schema", answer(world))
    ran = stele.ok("schema", "show", "library.songs", "--epoch", "9")
    (asked,) = server.asked_for("/v1/schema")
    assert asked.query["epoch"] == ["9"]
    version = world.image.schema.version
    assert f"version {version.state_id} since epoch {version.epoch}" in ran.out
    assert f"-- version {world.image.epoch}\nCREATE TABLE library.songs (" in ran.out
    assert "CREATE TYPE" not in ran.out
    assert "no 'library.gone'" in stele("schema", "show", "library.gone").err


def test_schema_diff_has_lines_of_cql(server: Server, stele: Stele) -> None:
    world = library()
    before = world.image.epoch
    change = c.TableAlteration(
        name="library.songs", rename={"artist": "by_whom"}, add=(column("length", "duration"),)
    )
    assert alter(world, change) is None
    server.answer("GET", "/v1/schema", answer(world, before))
    server.answer("GET", "/v1/schema", answer(world))
    ran = stele.ok("schema", "diff", str(before), "--json")
    lines = msgspec.json.decode(ran.out)["lines"]
    changed = [line for line in lines if line[0] in "+-"]
    assert "-    artist text," in changed and "+    by_whom text," in changed
    assert "+    length duration," in changed
    assert not [line for line in changed if "person" in line]
    heads = [line for line in lines if "CREATE" in line]
    assert heads[0] == " CREATE TABLE library.songs (", "each changed object begins with its name"
    assert not [line for line in heads if "TYPE" in line or "FUNCTION" in line]


def test_schema_history_has_actor_and_reason(server: Server, stele: Stele) -> None:
    world = library()
    server.answer("GET", "/v1/schema", answer(world))
    found = msgspec.json.decode(msgspec.json.encode(epoch_view(world.epochs[-1])))
    searched = {"newest": 9, "looked_at": 9, "next_before": 0, "epochs": [found]}
    server.answer("GET", "/v1/epochs/search", searched)
    for section in ("keyspaces", "tables", "requests"):
        server.answer("GET", f"/v1/{section}", {"epoch": 1, "state_id": "00", section: []})
    ran = stele.ok("schema", "history")
    asked = server.asked_for("/v1/epochs/search")[0]
    assert "TypeChanged" in asked.query["facts"][0]
    assert f"epoch {world.image.epoch}" in ran.out and "alter_schema by ada: why" in ran.out
    assert "type person has name text, home frozen<address>" in ran.out


def test_schema_history_has_a_replication_change_once(server: Server, stele: Stele) -> None:
    request = {
        "request_id": "r",
        "kind": "keyspace_rf_change",
        "keyspace_id": "k",
        "actor": "ada",
        "reason": "safer",
        "submitted_epoch": 3,
        "submitted_at_ms": 1,
    }
    keyspace = {"keyspace_id": "k", "name": "library", "replication": {"dc1": 2}}

    def epoch(number: int, status: str, placement: str, rf: int) -> dict[str, Any]:
        row = {**keyspace, "placement": placement, "replication": {"dc1": rf}}
        facts = [
            {"type": "KeyspaceChanged", "keyspace": row},
            {"type": "RequestChanged", "request": {**request, "status": status}},
        ]
        return {"epoch": number, "command": "advance", "actor": "coordinator-1", "facts": facts}

    rows = [
        epoch(8, "failed", "dc1:3", 3),
        epoch(7, "running", "r", 3),
        epoch(6, "done", "dc1:3", 3),
        epoch(5, "running", "r", 2),
    ]
    server.answer("GET", "/v1/schema", answer(library()))
    searched = {"newest": 9, "looked_at": 9, "next_before": 0, "epochs": rows}
    server.answer("GET", "/v1/epochs/search", searched)
    for section in ("keyspaces", "tables", "requests"):
        server.answer("GET", f"/v1/{section}", {"epoch": 1, "state_id": "00", section: []})
    head, fact = stele("schema", "history").out.splitlines()
    assert head.startswith("epoch 6 ") and head.endswith("keyspace_rf_change by ada: safer")
    assert fact.strip() == "keyspace library is replicated dc1:3"


def test_limit_of_schema_history_counts_only_shown_epochs(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/schema", answer(library()))
    changed, moving = {"type": "TypeDropped", "name": "library.t"}, {"type": "RequestChanged"}
    request = {"keyspace_id": "k", "request_id": "r", "kind": "drop_table", "status": "running"}
    pages = (({**moving, "request": request}, 5), (changed, 0))
    for epoch, (fact, before) in enumerate(pages, 7):
        row = {"epoch": epoch, "command": "alter_schema", "actor": "ada", "facts": [fact]}
        page = {"newest": 9, "looked_at": 9, "next_before": before, "epochs": [row]}
        server.answer("GET", "/v1/epochs/search", page)
    (shown,) = msgspec.json.decode(stele("schema", "history", "--limit", "1", "--json").out)
    assert shown["epoch"] == 8
    assert [a.query["before"] for a in server.asked_for("/v1/epochs/search")[1:]] == [["5"]]


def test_file_of_changes_is_sent_as_one_command(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    world = library()
    server.answer("POST", "/v1/commands", ACCEPTED)
    server.answer("GET", "/v1/schema", answer(world))
    file = tmp_path / "songs.json"
    file.write_text(
        """{"schema_version": 4, "changes": [
        {"type": "create_table", "name": "library.t", "columns": [{"name": "id", "type": "int",
         "kind": "partition_key"}], "parameters": {"gc_grace_seconds": 5, "cdc": {"enabled": true}}}]}"""
    )
    ran = stele.ok("schema", "apply", str(file), "--reason", "new service")
    command = msgspec.convert(sent(server)["command"], AlterSchema)
    (change,) = command.changes
    assert isinstance(change, c.TableCreation)
    assert change.parameters == {"gc_grace_seconds": "5", "cdc": "{'enabled': 'true'}"}
    assert command.schema_version == 4
    assert "1 change in epoch 8" in ran.out


def test_dry_run_shows_the_diff_or_the_rejection_and_sends_nothing(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    server.answer("GET", "/v1/dump", dump_of(library().image))
    file = tmp_path / "changes.json"
    drop = {"type": "drop_materialized_view", "name": "library.by_track"}
    add = {"type": "create_type", "name": "library.new", "fields": [{"name": "a", "type": "int"}]}
    file.write_bytes(msgspec.json.encode({"changes": [add, drop]}))
    ran = stele.ok("schema", "apply", str(file), "--dry-run")
    assert "+CREATE TYPE library.new (" in ran.out
    assert "requested: drop_table library.by_track" in ran.out
    file.write_bytes(msgspec.json.encode([{"type": "drop_type", "name": "library.address"}]))
    ran = stele("schema", "apply", str(file), "--dry-run")
    assert ran.exit_code != 0
    assert "the types person use it" in ran.err
    assert not server.asked_for("/v1/commands")


def test_schema_plan_is_applied_only_to_its_base_schema(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    image = library().image
    server.answer("GET", "/v1/dump", dump_of(image))
    wanted, plan = tmp_path / "wanted.cql", tmp_path / "plan.json"
    text = "\n".join(each.text for each in statements(schema_answer(image)))
    text = text.replace("    label text STATIC,\n", "    label text STATIC,\n    title text,\n")
    text = text.replace("AND gc_grace_seconds = 5", "AND gc_grace_seconds = 6")
    aggregate = text.index("CREATE AGGREGATE")
    wanted.write_text(text[:aggregate] + "CREATE TYPE library.new (a int);")
    ran = stele.ok("schema", "plan", str(wanted), "--save", str(plan))
    assert ran.out.splitlines() == [
        "- DROP AGGREGATE library.total (int);",
        "+ CREATE TYPE library.new (",
        "+     a int",
        "+ );",
        "~ ALTER TABLE library.songs ADD (title text);",
        "~ ALTER TABLE library.songs WITH gc_grace_seconds = 6;",
        "3 changes, 0 marked",
        f"Apply it: stele schema apply {plan}",
    ]
    server.answer("POST", "/v1/commands", ACCEPTED)
    server.answer("GET", "/v1/schema", msgspec.to_builtins(schema_answer(image)))
    ran = stele.ok("schema", "apply", str(plan))
    command = msgspec.convert(sent(server)["command"], AlterSchema)
    assert command.schema_version == image.schema.version.epoch
    assert [type(each) for each in command.changes] == [
        *(c.AggregateRemoval, c.TypeCreation, c.TableAlteration)
    ]


def test_schema_plan_marks_deletions_and_reports_an_equal_schema(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    image = library().image
    server.answer("GET", "/v1/dump", dump_of(image))
    wanted = tmp_path / "wanted.cql"
    text = "\n".join(each.text for each in statements(schema_answer(image)))
    wanted.write_text(text)
    assert stele("schema", "plan", str(wanted)).out == "The schema is as wanted.\n"
    wanted.write_text(text[: text.index("CREATE TABLE")])
    ran = stele("schema", "plan", str(wanted))
    assert ran.out.splitlines() == [
        "- DROP MATERIALIZED VIEW library.by_track;",
        "- DROP AGGREGATE library.total (int);",
        "- DROP FUNCTION library.plus (int, int);",
        "! Table library.songs can be dropped when its views are gone: plan again then.",
        "3 changes, 0 marked",
    ]
    wanted.write_text("DROP TABLE library.songs;")
    ran = stele("schema", "plan", str(wanted))
    assert ran.exit_code != 0
    assert "CREATE statements only, and not DROP TABLE" in ran.err


def agreement(*behind: str) -> dict[str, Any]:
    whys = dict.fromkeys(behind, "has applied epoch 7, not 8")
    return {
        "epoch": 8,
        "schema_version": {"epoch": 8, "state_id": "ab"},
        "agreed": not behind,
        "behind": behind,
        "members": [
            {
                "node_id": node,
                "liveness": "up",
                "epoch": 7 if node in whys else 8,
                "applied": node not in whys,
                "why": whys.get(node, ""),
            }
            for node in ("n1", "n2")
        ],
    }


AGREEMENT = "/guard/v1/schema/agreement"


def test_agreement_lists_lagging_members_and_sets_the_exit_code(
    server: Server, stele: Stele
) -> None:
    server.answer("GET", AGREEMENT, agreement("n2"))
    ran = stele.exits(1, "schema", "agreement")
    rows = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert rows[2:] == [
        "n1 up 8 has applied it",
        "n2 up 7 has applied epoch 7, not 8",
        "1 live member is behind.",
    ]
    assert msgspec.json.decode(stele("schema", "agreement", "-o", "json").out)["behind"] == ["n2"]
    server.answer("GET", AGREEMENT, agreement())
    stele("schema", "agreement")
    ran = stele.ok("schema", "agreement", "--epoch", "8")
    assert server.asked_for(AGREEMENT)[-1].query["epoch"] == ["8"]
    assert "All live members have applied it." in ran.out


@pytest.mark.parametrize(
    "command",
    [
        ("schema", "apply", "t.cql"),
        ("keyspace", "create", "music", "--replication", "dc1=1"),
        ("table", "create", "library.t"),
        ("table", "alter", "library.t", "--min-tablet-count", "8"),
    ],
    ids=" ".join,
)
def test_schema_change_waits_for_members_and_lists_lagging_ones(
    command: tuple[str, ...],
    server: Server,
    stele: Stele,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.cql").write_text("CREATE TYPE library.t (a int);")
    server.answer("POST", "/v1/commands", ACCEPTED)
    server.answer("GET", "/v1/schema", answer(library()))
    server.answer("GET", AGREEMENT, agreement("n2"))
    ran = stele.ok(*command, "--wait-s", "0")
    assert "The change is done, but after 0 s n2 had not applied it." in ran.err
    (asked,) = server.asked_for(AGREEMENT)
    assert asked.query["epoch"] == [str(ACCEPTED["epoch"])]
    server.answer("GET", AGREEMENT, agreement())
    ran = stele(*command)
    assert (ran.exit_code, ran.err) == (0, "")
    assert len(server.asked_for(AGREEMENT)) == 3, "it asked until all had applied the change"
    assert stele(*command, "--no-wait").exit_code == 0
    assert len(server.asked_for(AGREEMENT)) == 3


def test_schema_change_reports_unknown_agreement_without_a_guard(
    server: Server, stele: Stele
) -> None:
    server.answer("POST", "/v1/commands", ACCEPTED)
    ran = stele.ok("table", "create", "library.t")
    assert "Whether all members have applied it is unknown: There is nothing at" in ran.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not valid JSON"),
        (
            '{"changes": [{"type": "create_table"}]}',
            "changes[0]: Object missing required field `name`",
        ),
        ('[{"type": "create_tabel", "name": "a"}]', "changes[0].type: Invalid value"),
        ('[{"type": "drop_type", "name": "a.b", "if_exist": true}]', "unknown field `if_exist`"),
    ],
)
def test_invalid_file_of_changes_is_refused_with_the_position(
    content: str, why: str, stele: Stele, tmp_path: Path
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    ran = stele("schema", "apply", str(file))
    assert ran.exit_code != 0
    assert why in ran.err
