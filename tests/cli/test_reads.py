"""Output of the reading commands, and their position in the log."""

from __future__ import annotations

import csv
from typing import Any

import msgspec
import pytest
import yaml

from stele.cli.reading import as_counted
from stele.console.epoch_text import live_epoch_text
from stele.console.views import overview
from stele.domain.commands import AlterTable, DropTable, MoveTablets
from stele.domain.model.operations import TabletMove
from stele.domain.model.repairs import RepairTimes
from stele.domain.model.requests import DecidedGeneration, DecidedRequests
from stele.domain.model.schema import SchemaVersioned, TableOptions
from stele.domain.model.table_snapshots import RestoredTablets
from stele.domain.registry import FACTS
from stele.domain.view import diff, epoch_view
from stele.words.facts import IN_WORDS, EpochRow, fact_lines, fact_words
from stele.words.names import HistoryNames
from stele.words.state_diff import diff_lines
from tests.cli.conftest import (
    KEYSPACE,
    NODES,
    ROWS,
    Server,
    Stele,
    at,
    cluster,
    request,
    transition,
)
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import nodes_that_left

LIVENESS = [
    {"node_id": "n1", "liveness": "up", "epoch": 7, "lag": 0, "version": 3, "silent_for_s": 0.2},
    {"node_id": "n2", "liveness": "down", "epoch": 5, "lag": 2, "version": 3, "silent_for_s": None},
]
JOIN = "join-n3-1"
STREAMING = transition("write_both_read_old", JOIN, session="s-1")
BLOCKER = {"node_id": "n2", "why": "has applied epoch 5, not 7", "silent_for_s": 8.0}
WORK = {"kind": "stream", "status": "running", "bytes_done": 1_000_000, "bytes_total": 4_000_000}
PROGRESS = {
    "term": 2,
    "active": True,
    "version": 3,
    "fence_version": 2,
    "waits": [{"request_ids": [JOIN], "waiting_for": "stream by n3", "blockers": [BLOCKER]}],
    "transitions": [
        {
            "transition_id": JOIN,
            "request_ids": [JOIN],
            "kind": "join",
            "state": "write_both_read_old",
            "session": "s-1",
            "going_back": "",
            "waiting_for": "stream by n3",
            "blockers": [BLOCKER],
            "nodes": {"n3": {**WORK, "keys_done": 3, "error": ""}},
            "bytes_done": 1_000_000,
            "bytes_total": 4_000_000,
            "bytes_per_s": 100_000.0,
            "eta_s": 30.0,
        }
    ],
    "cleanups": {},
}
IDLE: dict[str, Any] = {**PROGRESS, "waits": [], "transitions": []}
COMMANDS = [["status"], ["nodes"], ["ring"], ["requests"], ["keyspace", "list"]]


def under_way(server: Server, progress: dict[str, Any] = PROGRESS) -> None:
    """Answer with a join of n3 that streams, and is delayed by n2."""
    running = request("running", actor="ada", reason="more room")
    cluster(server, requests=[running], transitions=[STREAMING])
    server.answer("GET", "/guard/v1/nodes", LIVENESS)
    server.answer("GET", "/v1/progress", progress)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_read_takes_an_epoch_and_a_level(
    server: Server, stele: Stele, command: list[str]
) -> None:
    cluster(server, epoch=4)
    stele.ok(*command, "--epoch", "4", "--level", "linearizable")
    queries = [asked.query for asked in server.asked if asked.path.startswith("/v1/")]
    reads = [query for query in queries if "level" in query]
    assert reads
    for query in reads:
        assert (query["epoch"], query["level"]) == (["4"], ["linearizable"])


@pytest.mark.parametrize("command", COMMANDS)
def test_all_parts_of_an_answer_are_of_one_epoch(
    server: Server, stele: Stele, command: list[str]
) -> None:
    cluster(server, epoch=9)
    server.answer("GET", "/v1/progress", IDLE)
    assert stele(*command).exit_code == 0
    reads = [asked.query for asked in server.asked if "level" in asked.query]
    assert "epoch" not in reads[0]
    assert all(query["epoch"] == ["9"] for query in reads[1:])


@pytest.mark.parametrize(
    "arguments",
    [*COMMANDS, ["why"], ["epochs"], ["requests", "--unfinished"]],
)
def test_no_command_fetches_the_whole_state(
    server: Server, stele: Stele, arguments: list[str]
) -> None:
    cluster(server)
    row = {"epoch": 7, "command": "advance", "facts": [{"type": "SomethingNew"}]}
    server.answer("GET", "/v1/epochs", [row])
    stele(*arguments, "--timeout", "2")
    assert server.asked
    assert not server.asked_for("/v1/state")


def test_state_of_a_left_node_shows_how_it_left() -> None:
    world = nodes_that_left()
    told = {node.node_id: node.departure for node in overview(world.image).nodes}
    assert {name: how for name, how in told.items() if how} == {
        "d1": "left",
        "e1": "removed",
        "f1": "replaced by g1",
        "h1": "never joined",
    }


def test_departure_of_a_node_is_read_from_its_request_in_the_log(
    server: Server, stele: Stele
) -> None:
    gone = {**NODES[0], "node_id": "n3", "state": "left", "tokens": [], "request_id": "r-3"}
    cluster(server, nodes=[*NODES, gone])
    removal = request("done", request_id="r-3", kind="remove") | {
        "removes_node": True,
        "dead_nodes": ["n3"],
    }
    row = {"epoch": 5, "facts": [{"type": "RequestChanged", "request": removal}]}
    found = {"newest": 7, "looked_at": 7, "next_before": 0, "epochs": [row]}
    server.answer("GET", "/v1/epochs/search", found)
    ran = stele("nodes", "--json")
    assert msgspec.json.decode(ran.out)["departures"] == {"n3": "removed"}
    assert "removed" in stele("nodes").out


def test_pages_are_followed_to_the_last(server: Server, stele: Stele) -> None:
    for rows, cursor in ((NODES[:1], "more"), (NODES[1:], "")):
        server.answer("GET", "/v1/nodes", {**at(7), "nodes": rows, "next_cursor": cursor})
    server.answer("GET", "/v1/keyspaces", {**at(7), "keyspaces": []})
    ran = stele("nodes", "--json")
    assert [node["node_id"] for node in msgspec.json.decode(ran.out)["nodes"]] == ["n1", "n2"]
    assert server.asked_for("/v1/nodes")[1].query["cursor"] == ["more"]


def test_status_shows_transitions_streamed_bytes_and_down_nodes(
    server: Server, stele: Stele
) -> None:
    under_way(server)
    ran = stele.exits(1, "status")
    for part in (
        "books  epoch 7",
        "version 3, fence 2",
        "join n3 in write_both_read_old",
        "waiting for stream by n3: 1.0 MB of 4.0 MB, 30.0 s to go",
        "down",
    ):
        assert part in ran.out


def test_status_of_an_idle_cluster_has_no_operations(server: Server, stele: Stele) -> None:
    cluster(server)
    assert "nothing is under way" in stele("status").out


def test_status_shows_the_health_reason_of_the_metadata_log(server: Server, stele: Stele) -> None:
    cluster(server)
    assert "copy" not in stele("status").out
    reason = "Topic stele.books.epochs: it has 1 copy."
    server.answer("GET", "/healthz", {"ok": True, "epoch": 7, "reason": reason})
    assert reason in stele("status").out
    assert msgspec.json.decode(stele("status", "--json").out)["notice"] == reason


def test_nodes_shows_the_share_of_each_keyspace(server: Server, stele: Stele) -> None:
    cluster(server)
    ran = stele("nodes")
    assert "holds library" in ran.out
    assert ran.out.count("50.0 %") == 2
    shown = msgspec.json.decode(stele("nodes", "--json").out)
    assert shown["holds"] == {"library": {"n1": 0.5, "n2": 0.5}}


def node_view(node_id: str, host_id: str = "", **stored: int) -> dict[str, Any]:
    """Return a node's report about itself at its address; ``stored`` are bytes by data id."""
    sizes = {keyspace_id.replace("_", "-"): size for keyspace_id, size in stored.items()}
    return {
        "node_id": node_id,
        "host_id": host_id,
        "cluster": "books",
        "dc": "dc1",
        "rack": "r1",
        "num_tokens": 1,
        "address": "",
        "keyspaces": {name: {"keys": 1, "bytes": size} for name, size in sizes.items()},
    }


def test_nodes_shows_the_stored_bytes_of_each_keyspace(server: Server, stele: Stele) -> None:
    n1, n2 = ({**node, "address": f"{server.url}/{node['node_id']}"} for node in NODES)
    empty = {**KEYSPACE, "keyspace_id": "id-2", "name": "films"}
    cluster(server, nodes=[n1, n2], keyspaces=[KEYSPACE, empty], tables=[])
    server.answer("GET", "/n1/v1/node", node_view("n1", id_1=57_300))
    ran = stele("nodes")
    assert "holds films" in ran.out and "holds library" in ran.out
    assert "50.0 %, 57.3 kB" in ran.out, "what n1 stores of library"
    assert "50.0 %, 0 B" in ran.out, "and of films"
    assert ran.out.count("50.0 %, unknown") == 2, "n2 does not answer"
    shown = msgspec.json.decode(stele("nodes", "--json").out)
    assert shown["holds"]["films"] == shown["holds"]["library"] == {"n1": 0.5, "n2": 0.5}
    assert shown["stored_bytes"] == {"films": {"n1": 0}, "library": {"n1": 57_300}}


def test_nodes_adds_the_data_of_tables_to_their_keyspace(server: Server, stele: Stele) -> None:
    tables: list[dict[str, Any]] = [
        {"table_id": "t-1", "keyspace_id": "id-1", "name": "books", "truncated_version": 4},
        {"table_id": "t-2", "keyspace_id": "id-2", "name": "other"},
    ]
    cluster(server, nodes=[{**NODES[0], "address": f"{server.url}/n1"}], tables=tables)
    view = node_view("n1", "", **{"id_1": 1_000, "t_1@4": 200, "t_1@4+cdc": 30, "t_2": 4})
    server.answer("GET", "/n1/v1/node", view)
    shown = msgspec.json.decode(stele("nodes", "--json").out)
    assert shown["stored_bytes"] == {"library": {"n1": 1_230}}


@pytest.mark.parametrize("stranger", [node_view("n9", id_1=1), node_view("n1", "other", id_1=1)])
def test_answer_of_another_node_at_the_address_is_ignored(
    server: Server, stele: Stele, stranger: dict[str, Any]
) -> None:
    cluster(server, nodes=[{**NODES[0], "address": f"{server.url}/n1"}])
    server.answer("GET", "/n1/v1/node", stranger)
    assert "50.0 %, unknown" in stele("nodes").out


def test_nodes_does_not_wait_for_a_node_that_is_down(server: Server, stele: Stele) -> None:
    cluster(server, nodes=[{**NODES[1], "address": f"{server.url}/n2"}])
    server.answer("GET", "/guard/v1/nodes", LIVENESS)
    assert "50.0 %, unknown" in stele("nodes").out
    assert not server.asked_for("/n2/v1/node")


def test_nodes_of_a_past_epoch_have_no_liveness_and_sizes(server: Server, stele: Stele) -> None:
    cluster(server, nodes=[{**NODES[0], "address": f"{server.url}/n1"}, NODES[1]], tables=[])
    server.answer("GET", "/guard/v1/nodes", LIVENESS)
    server.answer("GET", "/n1/v1/node", node_view("n1", id_1=57_300))
    past, of_now = stele("nodes", "--epoch", "7").out, (" up ", " heard ", "57.3 kB", " down ")
    assert "50.0 %" in past and "normal" in past
    assert not [each for each in (*of_now, "unknown") if each in past]
    assert all(each in stele("nodes").out for each in of_now)
    shown = msgspec.json.decode(stele("nodes", "--epoch", "7", "--json").out)
    assert {*shown} == {"epoch", "state_id", "nodes", "departures", "holds"}
    assert {*msgspec.json.decode(stele("nodes", "--json").out)} - {*shown} == {
        "stored_bytes",
        "liveness",
    }


def test_ring_marks_replicas_that_are_only_written(server: Server, stele: Stele) -> None:
    cluster(server)
    ran = stele("ring", "library")
    assert "n1 +n2" in ran.out
    assert "50.0 %" in ran.out
    assert msgspec.json.decode(stele("ring", "--json").out)["placements"]["dc1:1"][0] == {
        **ROWS[0],
        "version_before": 0,
        "other": [],
        "shards": [],
        "other_shards": [],
    }


def test_ring_requests_only_the_ranges_that_it_shows(server: Server, stele: Stele) -> None:
    cluster(server)
    server.answers.pop(("GET", "/v1/placements"))
    placement = {"placement": "dc1:1", "keyspaces": ["library"], "ranges": 5, "rows": ROWS}
    server.answer("GET", "/v1/placements", {**at(7), **placement, "next_cursor": "more"})
    assert "3 more ranges" in stele("ring", "library", "--limit", "2").out
    (asked,) = server.asked_for("/v1/placements")
    assert asked.query["limit"] == ["2"]


def test_ring_shows_the_range_of_a_key(server: Server, stele: Stele) -> None:
    cluster(server)
    ran = stele("ring", "library", "--key", "chorus")
    assert "key 'chorus' has token -6786713022667782255 and is in this range" in ran.out
    (asked,) = server.asked_for("/v1/placements")
    assert asked.query["token"] == ["-6786713022667782255"]
    assert stele("ring", "--key", "chorus").exit_code == 2
    assert stele("ring", "library", "--limit", "-1").exit_code == 2


def test_ring_of_an_unknown_keyspace_lists_known_keyspaces(server: Server, stele: Stele) -> None:
    cluster(server)
    assert "library" in stele.exits(1, "ring", "cellar").err


def test_refusal_text_has_command_actor_and_reason() -> None:
    fact = {"type": "CommandRefused", "command": "leave", "code": "too_few_nodes"}
    fact |= {"actor": "ada", "reason": "its disk is old", "message": "2 nodes would remain."}
    assert fact_words(fact) == (
        "leave by ada (its disk is old) is refused (too_few_nodes): 2 nodes would remain."
    )
    assert fact_words(fact | {"actor": "", "reason": ""}).startswith(
        "leave by an unknown caller is refused"
    )


def test_keyspaces_as_json_have_the_ranges_that_the_table_shows(
    server: Server, stele: Stele
) -> None:
    cluster(server)
    assert stele("keyspace", "list").exit_code == 0
    shown = msgspec.json.decode(stele("keyspace", "list", "--json").out)
    assert shown["ranges"] == {"library": 2}
    assert shown["balancing"]["off_since"] == 0


def test_unfinished_requests_as_json_are_what_the_table_shows(server: Server, stele: Stele) -> None:
    cluster(server, requests=[request("running")])
    ran = stele("requests", "--unfinished", "--json")
    shown = msgspec.json.decode(ran.out)
    assert {*shown} == {"epoch", "state_id", "since_epoch", "requests"}
    assert [row["request_id"] for row in shown["requests"]] == [JOIN]
    assert server.asked_for("/v1/requests")[0].query["unfinished"] == ["true"]


def test_list_is_printed_in_each_output_format(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    id_ = "01a226f2-8cf8-78d8-a6a2-0998791f2d0c"
    names = ["yes", "n: 1", "né\n"]
    cluster(
        server,
        requests=[request("running", request_id=id_, replication=dict.fromkeys(names, 1))],
    )
    document = msgspec.json.decode(stele("requests", "-o", "json").out)
    assert [*document["requests"][0]["replication"]] == names
    assert msgspec.json.decode(stele("requests", "--json").out) == document
    assert yaml.safe_load(stele("requests", "-o", "yaml").out) == document
    header, row = csv.reader(stele("requests", "-o", "csv").out.splitlines(keepends=True))
    assert header == ["request", "what", "status", "epoch", "took", "by", "why"]
    assert (row[0], row[2]) == (id_, "running") and row[1].startswith("join n3")
    assert id_ in stele("requests", "-o", "wide").out
    short = stele("requests").out
    assert id_[:13] in short and id_ not in short


def test_newest_requests_are_shown_and_others_counted(server: Server, stele: Stele) -> None:
    """Ids have the order of the requests."""
    many = [
        request("done", request_id=f"r-{n}", submitted_epoch=n, submitted_at_ms=1_000 * n)
        for n in (1, 2, 3)
    ]
    cluster(server, requests=many)
    shown = stele("requests", "--limit", "2").out
    assert "r-1" not in shown and shown.index("r-2") < shown.index("r-3")
    assert "1 older request: --limit 0 shows all." in shown
    assert "r-1" in stele("requests", "--limit", "0").out
    since = stele("requests", "--since", "1970-01-01T00:00:02+00:00").out
    assert "r-1" not in since and "r-2" in since and "r-3" in since


def test_list_of_requests_shows_that_it_is_complete(server: Server, stele: Stele) -> None:
    cluster(server)
    assert "goes back to the beginning of the log" in stele("requests").out


def test_list_of_requests_shows_which_requests_are_missing(server: Server, stele: Stele) -> None:
    cut_off = {**at(7), "requests": [], "since_epoch": 4, "since_ms": 1_000}
    server.answer("GET", "/v1/requests", cut_off)
    server.answer("GET", "/v1/nodes", {**at(7), "nodes": []})
    cut = stele("requests").out
    assert "some requests that ended by epoch 4, 1970-01-01" in cut and "`stele epochs`" in cut
    missing = stele("request", "show", "01a2")
    assert "There is no request '01a2'" in missing.err
    assert "Some that ended by epoch 4 are only in `stele epochs`." in missing.err


@pytest.mark.parametrize("command", [("why",), ("cancel",), ("request", "show")])
def test_node_name_instead_of_a_request_id_gives_a_hint(
    server: Server, stele: Stele, command: tuple[str, ...]
) -> None:
    cluster(server)
    ran = stele.exits(1, *command, "n2")
    assert (
        "There is no request 'n2' at epoch 7. n2 is a node: `stele requests --node n2`" in ran.err
    )
    assert "is a node" not in stele(*command, "n9").err


def test_ids_are_never_broken_over_lines(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "01a1fdeb-935e-784e-9962-92b6b7e7e7cc"
    gone = "d66337f0-7531-595b-99bf-abc8e8080ffe"
    dropped = {"kind": "drop_keyspace", "keyspace_id": gone, "node_id": ""}
    row = request("failed", request_id=long, reason="r " * 60, error="e " * 60, **dropped)
    cluster(server, requests=[row])
    for columns in (40, 60, 80, 100, 120, 125, 130, 135, 160, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        listed, shown = stele("requests").out, stele("request", "show", long).out
        assert long[:13] in listed and gone in listed, columns
        assert long in shown and gone in shown, columns


def test_drop_request_shows_the_keyspace_name(server: Server, stele: Stele) -> None:
    drop = request("pending", kind="drop_keyspace", node_id="", keyspace_id="id-1")
    cluster(server, requests=[drop], keyspaces=[{**KEYSPACE, "dropped_version": 4}])
    assert "drop_keyspace library" in stele("requests").out
    assert "is being dropped" in stele("keyspace", "list").out


def test_keyspace_with_a_replication_change_shows_the_target(server: Server, stele: Stele) -> None:
    kind = {"kind": "keyspace_rf_change", "node_id": "", "keyspace_id": "id-1"}
    asked = request("running", **kind, replication={"dc1": 3, "dc2": 2})
    cluster(server, requests=[asked], keyspaces=[{**KEYSPACE, "placement": asked["request_id"]}])
    placement = {
        "placement": asked["request_id"],
        "keyspaces": ["library"],
        "ranges": 2,
        "rows": ROWS,
    }
    server.answer("GET", "/v1/placements", {**at(7), **placement, "next_cursor": ""})
    assert "keyspace_rf_change library to dc1=3, dc2=2" in stele("requests").out
    assert "its replication changes" in stele("keyspace", "list").out


def test_request_show_accepts_a_prefix_of_an_id(server: Server, stele: Stele) -> None:
    done = request("done", finished_epoch=9, submitted_at_ms=1_000, finished_at_ms=3_500)
    cluster(server, requests=[done])
    ran = stele("request", "show", "join-n3")
    assert "request join-n3-1" in ran.out
    assert "2.5 s" in ran.out


def test_history_of_a_tablet_move_has_source_target_and_reason() -> None:
    world = with_table("a1 b1 c1", 4)
    source, *_ = replicas = tablets(world)[0].reads
    (target,) = {"a1", "b1", "c1"} - {*replicas}
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target, why="it is hot")
    assert world.apply(MoveTablets((move,)), "migration") is None
    world.run()
    assert world.apply(DropTable(TABLE), "drop") is None
    world.run()
    shown = msgspec.json.encode([epoch_view(epoch) for epoch in world.epochs])
    names = HistoryNames()
    rows = msgspec.json.decode(shown, type=list[EpochRow])
    lines = [line for row in rows for line in fact_lines(row, names)]
    about = f"tablet_migration of {TABLE} tablet 0 from {source} to {target}"
    assert f"request migration is pending: {about}" in [line.partition(", ")[0] for line in lines]
    assert any(line.startswith(f"{about} begins in allow_write_both_read_old") for line in lines)
    assert f"tablets of {TABLE}: 1 range out, 1 in" in lines
    assert f"table {TABLE}" in lines
    assert f"table {TABLE} is gone" in lines
    (table_id,) = {
        fact["table_id"] for row in rows for fact in row.facts if fact["type"] == "TableDropped"
    }
    assert not any(table_id in line for line in lines)


def test_history_and_diff_show_options_before_and_after() -> None:
    world = with_table("a1 b1 c1", 4)
    options = TableOptions(min_tablet_count=4, max_tablet_count=4)
    assert world.apply(AlterTable(TABLE, options)) is None
    before = world.image
    again = AlterTable(TABLE, TableOptions(max_tablet_count=8), reset=("min_tablet_count",))
    assert world.apply(again) is None
    told = live_epoch_text(before, world.epochs[-1], world.image)
    change = "max_tablet_count 4 -> 8, min_tablet_count 4 -> not set"
    assert {*told.lines[0].split(": ")[1].split(", ")} == {*change.split(", ")}
    changed = [line for _, line in diff_lines(diff(before, world.image)) if "options" in line]
    assert [line.partition(": ")[2] for line in changed] == [
        "options max_tablet_count 4 -> 8",
        "options min_tablet_count 4 -> 0",
    ]


def test_diff_counts_ranges_with_only_a_new_version() -> None:
    rows = [{"start": n, "end": n + 9, "reads": ["a"], "writes": ["a"]} for n in (0, 9)]
    moved = {**rows[1], "reads": ["b"], "writes": ["b"], "version": 5}
    removed = [{**row, "version": 4} for row in rows]
    placements = {"dc1:1": {"removed": removed, "added": [{**rows[0], "version": 5}, moved]}}
    assert diff_lines({"placements": placements}) == [
        ("-", "placement dc1:1: (9, 18] a"),
        ("+", "placement dc1:1: (9, 18] b"),
        ("~", "placement dc1:1: 1 range: only the version changed"),
    ]
    assert diff_lines({"cluster": {"log_id": {"before": "a", "after": "b"}}}) == [
        ("~", "cluster: log_id a -> b")
    ]
    columns = [{"name": name, "type": "int"} for name in ("pages", "year", "title")]
    after = [columns[1], {**columns[2], "type": "text"}, {"name": "isbn", "type": "text"}]
    fields = {"columns": {"before": columns, "after": after}}
    changed = {"table_schemas": {"changed": [{"table_id": "t", "fields": fields}]}}
    assert diff_lines(changed) == [
        ("~", "columns of table t: columns -pages, +isbn text, title int -> text")
    ]


def test_every_kind_of_fact_has_a_text() -> None:
    in_snapshots_only = {
        DecidedGeneration,
        DecidedRequests,
        RepairTimes,
        RestoredTablets,
        SchemaVersioned,
    }
    assert {fact.__name__ for fact in {*FACTS} - in_snapshots_only} == {*IN_WORDS}


def test_epochs_shows_the_last_changes_as_text_and_hides_barriers(
    server: Server, stele: Stele
) -> None:
    cluster(server, epoch=42)
    facts = [
        {"type": "VersionsChanged", "versions": {"version": 4, "fence_version": 3}},
        {"type": "TransitionMoved", "transition_id": JOIN, "state": "finishing"},
        {"type": "SomethingNew", "what": 1},
    ]
    change = {"epoch": 41, "command": "advance", "actor": "coordinator", "facts": facts}
    barrier = {"epoch": 42, "command": "noop", "facts": []}
    server.answer(
        "GET", "/v1/epochs", [{**barrier, "epoch": e} for e in range(1, 41)] + [change, barrier]
    )
    ran = stele("epochs", "--last", "1")
    assert "version 4, fence 3; transition join-n3-1 is in finishing" in ran.out
    assert 'SomethingNew {"what":1}' in ran.out
    assert "noop" not in ran.out
    assert "1 hidden barrier: --barriers shows them." in ran.out
    assert "40 earlier epochs: --limit shows more." in ran.out
    shown = stele("epochs", "--last", "2", "--barriers")
    assert "nothing: a barrier" in shown.out
    shown = stele("epochs", "--from", "3", "--limit", "20", "--barriers")
    assert "later epochs: --limit shows more." in shown.out
    rows = msgspec.json.decode(stele("epochs", "--last", "5", "--json").out)
    assert [row["epoch"] for row in rows] == [41]


@pytest.mark.parametrize("width", [40, 60, 80, 129, 130, 200])
def test_ids_in_epochs_are_not_broken_at_any_width(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ids = [f"01a20865-a490-7ee1-8756-1fc01409{number:04}" for number in range(3)]
    facts = [
        {"type": "RequestChanged", "request": {**request("done"), "request_id": i}} for i in ids
    ]
    row = {"epoch": 7, "command": "advance_the_fence", "actor": "coordinator", "facts": facts}
    cluster(server)
    server.answer("GET", "/v1/epochs", [{**row, "reason": "a long reason " * 9}])
    ran = stele.ok("epochs", "--last", "1")
    assert all(i in ran.out for i in ids), ran.out


def test_epochs_are_filtered_by_actor_command_node_and_time(server: Server, stele: Stele) -> None:
    cluster(server)
    rows = [{"epoch": e, "command": "join", "facts": [{"type": "Odd"}]} for e in (6, 2)]
    found = {"newest": 7, "looked_at": 7, "next_before": 0, "epochs": rows}
    server.answer("GET", "/v1/epochs/search", found)
    ran = stele(
        *("epochs", "--actor", "ada", "--command", "join", "--node", "n3", "--since", "2026-11-22"),
        *("--refused", "--last", "2", "--epoch", "6", "--json"),
    )
    assert [row["epoch"] for row in msgspec.json.decode(ran.out)] == [2, 6], ran.err
    (asked,) = server.asked_for("/v1/epochs/search")
    given = {name: values[0] for name, values in asked.query.items() if name != "since_ms"}
    assert given == {
        "actor": "ada",
        "command": "join",
        "about": "n3",
        "refused": "true",
        "before": "7",
        "limit": "2",
    }
    assert stele("epochs", "--from", "2", "--actor", "ada").exit_code == 2


@pytest.mark.parametrize("where", [["--last", "5"], ["--from", "3", "--last", "5"]])
def test_epochs_of_several_pages_are_all_shown(
    server: Server, stele: Stele, where: list[str]
) -> None:
    cluster(server, epoch=7)
    rows = [{"epoch": epoch, "command": "noop", "facts": []} for epoch in range(3, 8)]
    for part in (rows[:3], rows[3:]):
        server.answer("GET", "/v1/epochs", part)
    ran = stele("epochs", *where, "--barriers", "--json")
    assert [row["epoch"] for row in msgspec.json.decode(ran.out)] == [3, 4, 5, 6, 7], ran.err
    asked = [(part.query["from"], part.query["limit"]) for part in server.asked_for("/v1/epochs")]
    assert asked == [(["3"], ["5"]), (["6"], ["2"])]


def test_pages_of_epochs_respect_the_limit_of_the_service(server: Server, stele: Stele) -> None:
    cluster(server, epoch=1500)
    rows = [{"epoch": epoch, "command": "noop", "facts": []} for epoch in range(1, 1501)]
    for part in (rows[:1000], rows[1000:]):
        server.answer("GET", "/v1/epochs", part)
    ran = stele("epochs", "--from", "1", "--last", "1500", "--barriers", "--json")
    assert len(msgspec.json.decode(ran.out)) == 1500, ran.err
    limits = [part.query["limit"] for part in server.asked_for("/v1/epochs")]
    assert limits == [["1000"], ["500"]]


def test_diff_marks_added_removed_and_changed_rows(server: Server, stele: Stele) -> None:
    row = {"start": 1, "end": 2, "reads": ["n1"], "writes": ["n1", "n2"]}
    server.answer(
        "GET",
        "/v1/diff",
        {
            "topology": {"version": {"before": 1, "after": 2}},
            "nodes": {
                "added": [{"node_id": "n3", "state": "none", "dc": "dc1", "rack": "r3"}],
                "removed": [],
                "changed": [
                    {"node_id": "n1", "fields": {"state": {"before": "normal", "after": "left"}}}
                ],
            },
            "transitions": {
                "added": [{"transition_id": "t", "kind": "join", "state": "join_group0"}],
                "removed": [],
                "changed": [],
            },
            "placements": {"dc1:1": {"added": [row], "removed": []}},
        },
    )
    ran = stele("diff", "1", "2")
    assert ran.out.splitlines() == [
        "~ topology: version 1 -> 2",
        "+ node n3: none dc1 r3",
        "~ node n1: state normal -> left",
        "+ transition t: join join_group0",
        "+ placement dc1:1: (1, 2] reads n1, writes n1 n2",
    ]


def test_watch_resumes_after_a_broken_stream(server: Server, stele: Stele) -> None:
    cluster(server, epoch=3)

    def event(epoch: int) -> str:
        row = f'{{"epoch": {epoch}, "command": "noop", "state_id": "{epoch:032x}"}}'
        return f"id: {epoch}\ndata: {row}\n\n"

    server.stream("/v1/epochs", ": ping\n\n" + event(4) + event(5))
    server.stream("/v1/epochs", event(5) + event(6))
    ran = stele("watch", "--count", "3", "--json", "--barriers")
    epochs = [msgspec.json.decode(line)["epoch"] for line in ran.out.splitlines()]
    assert epochs == [4, 5, 6]
    resumed = [asked.headers["last-event-id"] for asked in server.asked_for("/v1/epochs")]
    assert resumed == ["3", "5"]
    states = [asked.query.get("state_id") for asked in server.asked_for("/v1/epochs")]
    assert states == [None, [f"{5:032x}"]], "another history is refused"
    assert not server.asked_for("/v1/state")


def test_watch_shows_actor_and_reason(server: Server, stele: Stele) -> None:
    cluster(server, epoch=3)
    row = '{"epoch": 4, "command": "join", "actor": "ada", "reason": "more room", "facts": []}'
    server.stream("/v1/epochs", f"id: 4\ndata: {row}\n\n")
    assert "ada: more room" in stele("watch", "--count", "1", "--barriers").out


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["n10", "n2", "a", "n1b3", "n1b", "n", "b-2-1", "b-10", "10", "9"]
    counted = ["9", "10", "a", "b-2-1", "b-10", "n", "n1b", "n1b3", "n2", "n10"]
    assert sorted(names, key=as_counted) == counted


def test_status_reports_a_silent_coordinator_only_if_its_address_is_known(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(server)
    alone = stele("status")
    assert (alone.exit_code, "No coordinator answers" in alone.out) == (1, True)
    assert "/v1/progress" in alone.out, "which address it is, and why it does not answer"
    monkeypatch.delenv("STELE_COORDINATOR_URLS")
    unknown = stele("status")
    assert (unknown.exit_code, "No coordinator answers" in unknown.out) == (0, False)


def test_columns_of_a_table_are_told_with_what_was_dropped_and_set() -> None:
    dropped = [{"name": "price", "dropped_epoch": 7}, {"name": "old", "dropped_epoch": 5}]
    schema = {
        "table_id": "t1",
        "version": 7,
        "columns": [{"name": "id", "type": "int"}],
        "dropped_columns": dropped,
        "parameters": {"cdc": "{'enabled': 'true'}"},
    }
    assert IN_WORDS["TableSchemaChanged"]({"schema": schema}) == (
        "table t1 has columns id int; dropped now price; with cdc = {'enabled': 'true'}"
    )
