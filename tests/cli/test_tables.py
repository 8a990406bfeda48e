"""``stele table``, ``stele tablet`` and ``stele balance``: their requests and their output."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest

from stele.cli.output import clock
from stele.domain.balancer.proposals import plan_to_end
from stele.domain.model.requests import Request
from stele.domain.model.schema import Balancing
from stele.domain.names import RequestKind
from stele.domain.planner.planned import NodeVerdict, Rule, TableSizes, TabletSize
from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancedNode,
    BalancedShard,
    BalancePlan,
    BalanceState,
    PlannedTabletMove,
    SizesAnswer,
    SwitchedOff,
    TabletWhy,
)
from stele.words.names import what
from tests.cli.conftest import Server, Stele, at, cluster, request
from tests.cli.test_reads import IDLE
from tests.coordinator.test_tablets import with_table

KEYSPACE = {
    "keyspace_id": "k-1",
    "name": "music",
    "replication": {"dc1": 2},
    "placement": "",
    "tablets": True,
    "initial_tablets": 8,
}
SONGS = {
    "table_id": "t-1",
    "keyspace_id": "k-1",
    "name": "songs",
    "placement": "tablets:t-1",
    "options": {"min_tablet_count": 8},
}
BY_BAND = {
    "table_id": "t-2",
    "keyspace_id": "k-1",
    "name": "by_band",
    "placement": "tablets:t-1",
}
BY_YEAR = {"table_id": "t-3", "name": "by_year"}
ROWS = [
    {
        "start": -(2**63),
        "end": 0,
        "reads": ["n1", "n2"],
        "writes": ["n1", "n2", "n3"],
        "version": 7,
    },
    {"start": 0, "end": -(2**63), "reads": ["n3"], "writes": ["n3"], "version": 0},
]
OUTCOME = {"request_id": "r", "applied": True, "epoch": 41, "state_id": "ab"}


def sent(server: Server) -> dict[str, object]:
    (asked,) = server.asked_for("/v1/commands")
    found: dict[str, object] = msgspec.json.decode(asked.body)["command"]
    return found


def music(server: Server, *tables: Mapping[str, object]) -> None:
    """Answer with these tables of the keyspace music."""
    server.answer("GET", "/v1/tables", {**at(31), "tables": tables, "next_cursor": ""})
    server.answer("GET", "/v1/keyspaces", {**at(31), "keyspaces": [KEYSPACE], "next_cursor": ""})


def test_alter_shows_each_option_before_and_after(server: Server, stele: Stele) -> None:
    options = {"before": {"min_tablet_count": 4}, "after": {"max_tablet_count": 8}}
    changed = [{"table_id": "id", "fields": {"options": options}}]
    server.answer("POST", "/v1/commands", OUTCOME)
    server.answer("GET", "/v1/diff", {"tables": {"changed": changed}})
    given = ("--max-tablet-count", "8", "--reset", "min_tablet_count")
    ran = stele.ok("table", "alter", "music.songs", *given)
    assert sent(server)["reset"] == ["min_tablet_count"]
    assert "music.songs since epoch 41: max_tablet_count not set -> 8" in ran.out
    server.asked.clear()
    stele.ok("table", "alter", "music.songs", "--min-tablet-count", "0")
    assert sent(server)["reset"] == ["min_tablet_count"]


def test_lists_show_which_tables_share_tablets(server: Server, stele: Stele) -> None:
    off = {"off_since": 7}
    tables = [{**BY_BAND, "balancing": off}, {**BY_BAND, **BY_YEAR, "options": {}}, SONGS]
    music(server, *tables)
    names = ["music.songs", "music.by_band"]
    page = {**tablet_page(ROWS[0], ranges=1), "keyspaces": names}
    server.answer("GET", "/v1/placements", page)
    lines = [" ".join(line.split()) for line in stele("table", "list").out.splitlines()]
    assert lines[2] == "music.by_band 1 co-located with music.songs, balancing is off"
    assert lines[3].endswith("co-located with music.songs") and "with" not in lines[4]
    assert "they are those of music.songs too" in stele("tablet", "list", "music.by_band").out
    found = json.loads(stele("tablet", "list", "music.by_band", "--json").out)
    assert found["tables"] == names


def test_moves_of_a_colocated_group_are_shown_for_each_table(server: Server, stele: Stele) -> None:
    move = request(
        "running",
        kind="tablet_migration",
        node_id="",
        table_id="t-1",
        actor="tablet-balancer",
        tablet_count=2,
        from_node="n1",
        to_node="n2",
    )
    cluster(server, 31, requests=[move], keyspaces=[KEYSPACE])
    server.answer("GET", "/v1/tables", {**at(31), "tables": [BY_BAND, SONGS], "next_cursor": ""})
    server.answer("POST", "/v1/commands", OUTCOME)
    ran = stele.ok("balance", "off", "music.by_band")
    assert "1 move or resize of the balancer continues" in ran.out
    server.answer("GET", "/v1/progress", IDLE)
    assert "it is about music.by_band too, co-located with music.songs" in stele("why").out


def test_tablets_with_the_oldest_repair_are_shown_first(server: Server, stele: Stele) -> None:
    times = (1_700_000_000_000, 0, 1_600_000_000_000)
    rows = [{"tablet": tablet, "repaired_ms": ms} for tablet, ms in enumerate(times)]
    page = {**at(31), "table": "music.songs", "tablets": 3, "repairs": rows, "next_cursor": ""}
    server.answer("GET", "/v1/repairs", page)
    ran = stele.ok("tablet", "repairs", "music.songs", "--limit", "2")
    shown = [line.split() for line in ran.out.splitlines()[2:4]]
    assert [line[0] for line in shown] == ["1", "2"]
    assert shown[0][1] == "never" and shown[1][1].startswith("2020-09-")
    assert "1 more tablet: --limit 0 shows all." in ran.out
    as_json = msgspec.json.decode(stele("tablet", "repairs", "music.songs", "--json").out)
    assert [each["tablet"] for each in as_json["repairs"]] == [1, 2, 0]


def test_tables_are_listed_with_their_tablets_and_options(server: Server, stele: Stele) -> None:
    music(server, SONGS)
    page = {
        **at(31),
        "placement": "tablets:t-1",
        "keyspaces": ["music.songs"],
        "ranges": 2,
        "rows": ROWS[:1],
        "next_cursor": "more",
    }
    server.answer("GET", "/v1/placements", page)
    lines = [line.split() for line in stele("table", "list").out.splitlines()]
    assert lines[2] == ["music.songs", "2", "min_tablet_count", "8"]


def test_a_list_of_tables_needs_no_request_for_each_table(server: Server, stele: Stele) -> None:
    tables = [{**SONGS, "table_id": f"t-{n}", "placement": f"tablets:t-{n}"} for n in range(3)]
    tablets = {f"t-{n}": n + 1 for n in range(3)}
    answer = {**at(31), "tables": tables, "tablets": tablets, "next_cursor": ""}
    server.answer("GET", "/v1/tables", answer)
    server.answer("GET", "/v1/keyspaces", {**at(31), "keyspaces": [KEYSPACE], "next_cursor": ""})
    lines = [line.split() for line in stele("table", "list").out.splitlines()]
    assert [line[1] for line in lines[2:]] == ["1", "2", "3"]
    assert not server.asked_for("/v1/placements")


def test_tablets_are_numbered_and_show_joining_replicas(server: Server, stele: Stele) -> None:
    page = {
        **at(31),
        "placement": "tablets:t-1",
        "keyspaces": ["music.songs"],
        "ranges": 3,
        "rows": ROWS,
        "next_cursor": "",
    }
    server.answer("GET", "/v1/placements", page)
    ran = stele.ok("tablet", "list", "music.songs", "--limit", "2")
    assert ran.out.splitlines()[0].strip() == "3 tablets of music.songs at epoch 31"
    assert ran.out.splitlines()[2].split() == ["0", str(-(2**63)), "0", "7", "n1", "n2", "+n3"]
    assert "1 more tablet:" in ran.out
    (asked,) = server.asked_for("/v1/placements")
    assert asked.query["keyspace"] == ["music.songs"]
    found = json.loads(stele("tablet", "list", "music.songs", "--json").out)
    assert [row["reads"] for row in found["tablets"]] == [["n1", "n2"], ["n3"]]


def tablet_page(row: dict[str, object], ranges: int) -> dict[str, object]:
    page = {"placement": "tablets:t-1", "keyspaces": ["music.songs"], "ranges": ranges}
    return {**at(31), **page, "rows": [row], "next_cursor": ""}


def schema_of_songs(*keys: str, clustering: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the schema, with columns of the table for keys of these types; without any for none."""
    kinds = [("partition_key", type_) for type_ in keys]
    kinds += [("clustering", type_) for type_ in clustering]
    columns = [
        {"column_id": number, "name": f"k{number}", "type": type_, "kind": kind}
        for number, (kind, type_) in enumerate(kinds)
    ]
    schemas = (
        [{"table_id": "t-1", "version": 5, "columns": columns, "next_column_id": 9}]
        if columns
        else []
    )
    objects = {"types": [], "functions": [], "aggregates": [], "table_schemas": schemas}
    version = {"epoch": 5, "state_id": ""}
    rows = {"keyspaces": [KEYSPACE], "tables": [SONGS]}
    return {**at(31), "schema_version": version, **rows, **objects}


def test_tablet_shows_its_operation_with_actor_and_reason(server: Server, stele: Stele) -> None:
    quarter = {
        "start": 2**62 - 1,
        "end": -(2**63),
        "reads": ["n4"],
        "writes": ["n4", "n5"],
        "version": 7,
    }
    page = {**tablet_page(quarter, ranges=4), "keyspaces": ["music.songs", "music.by_band"]}
    server.answer("GET", "/v1/placements", page)
    repaired = {"table": "music.songs", "tablets": 4, "repairs": [[3, 0]]}
    repaired["repairs"] = [{"tablet": 3, "repaired_ms": 0}]
    server.answer("GET", "/v1/repairs", {**at(31), **repaired, "next_cursor": ""})
    move = {
        "kind": "tablet_migration",
        "status": "running",
        "table_id": "t-1",
        "tablet": 3,
        "tablet_count": 4,
        "from_node": "n4",
        "to_node": "n5",
        "actor": "ada",
        "reason": "more room",
    }
    requests = [
        {**move, "request_id": "r-1"},
        {**move, "request_id": "r-2", "tablet": 2},
        {**move, "request_id": "r-3", "tablet_count": 2},
    ]
    of = {"since_epoch": 0, "since_ms": 0, "next_cursor": ""}
    server.answer("GET", "/v1/requests", {**at(31), **of, "requests": requests})
    server.answer("GET", "/v1/requests", {**at(31), **of, "requests": []})
    music(server, SONGS)
    under_way = {"transition_id": "r-1", "kind": "tablet_migration", "state": "streaming"}
    versions = {"version": 9, "fence_version": 8, "since_epoch": 30, "fence_epoch": 29}
    topology = {
        "cluster": "demo",
        "cluster_id": "demo/1",
        "log_id": "00",
        "topology": versions,
        "coordinator": {"term": 1, "holder": "c1"},
        "transitions": [under_way],
    }
    server.answer("GET", "/v1/topology", {**at(31), **topology})
    ran = stele.ok("tablet", "show", "music.songs", "3")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert lines[0] == "tablet 3 of 4 of music.songs at epoch 31"
    assert lines[1] == f"range ({2**62 - 1}, {-(2**63)}]"
    assert lines[2:] == [
        "replicas n4 +n5",
        "version 7",
        "repaired never",
        "shared by music.by_band",
        "under way streaming: tablet_migration of music.songs tablet 3 from n4 to n5, by ada: more room"
        " (request r-1)",
    ]
    asked = [each.query.get("token") for each in server.asked_for("/v1/placements")]
    assert asked == [None, [str(-(2**63))]]
    assert "the last is 3" in stele.exits(1, "tablet", "show", "music.songs", "4").err


def test_the_tablet_of_a_key_is_shown_with_its_number(server: Server, stele: Stele) -> None:
    token = -6786713022667782255  # of "chorus", by Cassandra's Murmur3Partitioner
    quarter = {"start": 2**62 - 1, "end": -(2**63), "reads": ["n4"], "writes": ["n4"]}
    server.answer("GET", "/v1/placements", tablet_page(quarter, ranges=4))
    server.answer("GET", "/v1/schema", schema_of_songs())
    ran = stele.ok("tablet", "list", "music.songs", "--key", "chorus")
    lines = ran.out.splitlines()
    assert lines[0] == f"key 'chorus' has token {token} and is in tablet 3"
    assert lines[1].strip() == "4 tablets of music.songs at epoch 31"
    assert lines[3].split()[0] == "3"
    assert "more tablets" not in ran.out
    (asked,) = server.asked_for("/v1/placements")
    assert asked.query["token"] == [str(token)]
    server.answers.clear()
    server.answer("GET", "/v1/schema", schema_of_songs("text", clustering=("int",)))
    second = {"start": -(2**62) - 1, "end": -1, "reads": ["n4"], "writes": ["n4"]}
    server.answer("GET", "/v1/placements", tablet_page(second, ranges=4))
    found = json.loads(stele("tablet", "list", "music.songs", "--key", "chorus", "--json").out)
    assert found["first"] == 1


@pytest.mark.parametrize("types", [("uuid",), ("text", "date")])
def test_key_that_is_no_single_text_is_refused(
    server: Server, stele: Stele, types: tuple[str, ...]
) -> None:
    quarter = {"start": 2**62 - 1, "end": -(2**63), "reads": ["n4"], "writes": ["n4"]}
    server.answer("GET", "/v1/placements", tablet_page(quarter, ranges=4))
    server.answer("GET", "/v1/schema", schema_of_songs(*types))
    ran = stele.exits(1, "tablet", "list", "music.songs", "--key", "chorus")
    assert f"The partition key of music.songs is (k0 {types[0]}" in ran.err


def test_a_table_on_the_ring_has_no_tablets_to_list(server: Server, stele: Stele) -> None:
    page = {"placement": "dc1:2", "keyspaces": ["plain"], "ranges": 2, "rows": ROWS}
    server.answer("GET", "/v1/placements", {**at(31), **page, "next_cursor": ""})
    ran = stele.exits(1, "tablet", "list", "plain.t")
    assert "plain.t has no tablets" in ran.err
    assert "stele ring plain" in ran.err


def test_ring_of_a_keyspace_with_tablets_hints_at_tablet_list(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/keyspaces", {**at(31), "keyspaces": [KEYSPACE], "next_cursor": ""})
    for arguments, command in (
        (["music"], "stele tablet list music.TABLE"),
        (["music.songs", "--key", "a key"], "stele tablet list music.songs --key 'a key'"),
    ):
        ran = stele.exits(1, "ring", *arguments)
        assert f"'{arguments[0]}' is in tablets, not on the ring" in ran.err
        assert f"`{command}`" in ran.err


TOLD = BalancedNode(
    tablets=2, size_bytes=1500, capacity_bytes=2_000_000, of_share=0.95, report_age_s=3.0
)
SILENT = BalancedNode(
    tablets=4, size_bytes=None, capacity_bytes=None, of_share=None, report_age_s=None
)


def test_balance_shows_planned_moves_and_stuck_tablets(server: Server, stele: Stele) -> None:
    move = PlannedTabletMove(
        table="music.songs",
        tablet=3,
        from_node="n1",
        to_node="n4",
        kind="migration",
        why="n1 has 4 replicas of music.songs, its share is 2",
    )
    answer = BalanceAnswer(
        epoch=31,
        state_id="ab",
        state=BalanceState.STALLED,
        under_way=("r-1",),
        planned=(move,),
        stuck={"leave-n2": "no other node can take 2 tablets"},
        balanced_by="count",
        why="no load is known of n10",
        nodes={"n10": SILENT, "n2": TOLD},
        down=("n3",),
        avoided=("n5",),
        full=("n6",),
    )
    server.answer("GET", "/v1/balance", answer)
    other_requests(server)
    ran = stele.ok("balance", "status")
    text = " ".join(ran.out.split())
    assert "stalled at epoch 31; 1 tablet moves" in text
    assert "request leave-n2 cannot continue: no other node can take 2 tablets" in text
    assert "not heard: n3" in text
    assert "moves to or from n5 have failed: no tablet moves there for a while" in text
    assert "no space is left on n6: no tablet moves there" in text
    assert "by count: no load is known of n10" in text
    assert "reported n2 2 1.5 kB 2.0 MB 95.0 % 3.0 s ago n10 4 never" in text
    assert "music.songs 3 n1 n4 migration n1 has 4 replicas" in text
    assert json.loads(stele("balance", "status", "--json").out)["planned"][0]["tablet"] == 3


def test_requests_about_tablets_show_table_names(server: Server, stele: Stele) -> None:
    request = {
        "request_id": "r-1",
        "kind": "tablet_migration",
        "status": "running",
        "table_id": "t-1",
        "tablet": 3,
        "from_node": "n1",
        "to_node": "n4",
        "actor": "tablet-balancer",
        "submitted_epoch": 30,
    }
    page = {**at(31), "requests": [request], "since_epoch": 0, "since_ms": 0, "next_cursor": ""}
    server.answer("GET", "/v1/requests", page)
    music(server, SONGS)
    text = " ".join(stele("requests").out.split())
    assert "tablet_migration of music.songs tablet 3 from n1 to n4" in text


def test_tablet_why_explains_each_possible_move(server: Server, stele: Stele) -> None:
    verdicts = (
        NodeVerdict("n1", "n1", False, Rule.HOLDS_ONE, "n1 has a replica of this tablet already"),
        NodeVerdict(
            "n1", "n3", False, Rule.RACK, "rack r1 of n3 would have too many of its replicas"
        ),
        NodeVerdict(
            "n1", "n4", True, Rule.EVENER, "n1 has 4 replicas, its share is 2; n4 has 0 of 2"
        ),
    )
    answer = TabletWhy(epoch=31, state_id="ab", table="music.songs", tablet=3, verdicts=verdicts)
    server.answer("GET", "/v1/balance/why", answer)
    ran = stele.ok("balance", "why", "music.songs", "3")
    text = " ".join(ran.out.split())
    assert "tablet 3 of music.songs at epoch 31" in text
    assert "n1 n3 no rack rack r1 of n3 would have too many" in text
    assert "n1 n4 yes evener n1 has 4 replicas" in text
    assert "n1 n1" not in text
    (asked,) = server.asked_for("/v1/balance/why")
    assert (asked.query["table"], asked.query["tablet"]) == (["music.songs"], ["3"])
    found = json.loads(stele("balance", "why", "music.songs", "3", "--json").out)
    assert found["verdicts"][2]["accepted"] is True


def test_balance_plan_has_the_output_of_an_offline_plan(server: Server, stele: Stele) -> None:
    world = with_table("a1 b1 c1", 16)
    world.add("d1")
    world.run()
    plan = plan_to_end(world.image)
    answer = BalancePlan(epoch=31, state_id="ab", plan=plan)
    server.answer("GET", "/v1/balance/plan", answer)
    ran = stele.ok("balance", "plan")
    text = " ".join(ran.out.split())
    assert text.startswith(f"plan at epoch 31 moves: {len(plan.moves)} migration; nothing is done")
    assert "node replicas after of its share will be" in text
    assert len(json.loads(stele("balance", "plan", "--json").out)["plan"]["moves"]) == len(
        plan.moves
    )


MOVE = {
    "request_id": "r-1",
    "kind": "tablet_migration",
    "status": "running",
    "table_id": "t-1",
    "tablet": 3,
    "from_node": "n2",
    "to_node": "n4",
    "actor": "tablet-balancer",
    "reason": "n2 has 7 replicas of music.songs, its share is 4",
}
LEAVE = {
    "request_id": "r-2",
    "kind": "leave",
    "status": "pending",
    "node_id": "n2",
    "removes_node": True,
    "actor": "ada",
}


def test_balance_shows_repairs_and_their_reasons(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/balance", balance(BalanceState.BALANCED))
    repair = {"table_id": "t-1", "status": "running", "submitted_ms": 7, "submitted_epoch": 30}
    tablet = {
        **repair,
        "request_id": "r-2",
        "kind": "tablet_repair",
        "tablet": 3,
        "tablet_count": 8,
    }
    whole = {**repair, "request_id": "r-1", "kind": "table_repair", "reason": "n2 was down"}
    other_requests(server, {**tablet, "reason": "it was never repaired"}, whole)
    lines = stele("balance", "status").out.splitlines()
    assert [line for line in lines if "repair music" in line or "repair of" in line] == [
        "table_repair music.songs (r-1) is running: n2 was down",
        "tablet_repair of music.songs tablet 3 (r-2) is running: it was never repaired",
    ]


def other_requests(server: Server, *requests: dict[str, object]) -> None:
    """Answer with these requests, tables and keyspaces."""
    page = {**at(31), "since_epoch": 0, "since_ms": 0, "next_cursor": ""}
    server.answer("GET", "/v1/requests", {**page, "requests": requests})
    music(server, SONGS)


def balance(state: BalanceState, **more: tuple[PlannedTabletMove, ...]) -> BalanceAnswer:
    return BalanceAnswer(
        epoch=31,
        state_id="ab",
        state=state,
        under_way=("r-1",),
        planned=more.get("planned", ()),
        stuck={},
        balanced_by="size",
        why="the loads of all 2 nodes are known",
        nodes={"n2": msgspec.structs.replace(TOLD, tablets=3), "n4": SILENT},
        down=(),
        avoided=(),
        full=(),
    )


def test_balance_shows_running_moves_once_and_leaving_nodes(server: Server, stele: Stele) -> None:
    move = PlannedTabletMove(
        table="music.songs", tablet=3, from_node="n2", to_node="n4", kind="migration", why="x"
    )
    server.answer("GET", "/v1/balance", balance(BalanceState.BALANCING, planned=(move,)))
    other_requests(server, MOVE, LEAVE)
    lines = [" ".join(line.split()) for line in stele("balance", "status").out.splitlines()]
    assert "leave n2 (r-2) is pending: 3 tablets are left on n2" in lines
    because = "n2 has 7 replicas of music.songs, its share is 4"
    assert f"music.songs 3 n2 n4 tablet-balancer {because}" in lines
    assert "planned at the last look" not in lines


def test_disabled_balancer_is_shown_as_off(server: Server, stele: Stele) -> None:
    off = SwitchedOff("", Balancing(off_since=30, actor="ada", reason="the night"), expired=False)
    late = Balancing(off_since=20, until_ms=1_700_000_000_000)
    answer = balance(BalanceState.OFF)
    passed = SwitchedOff("music.songs", late, expired=True)
    server.answer("GET", "/v1/balance", msgspec.structs.replace(answer, off=(off, passed)))
    other_requests(server)
    lines = stele("balance", "status").out.splitlines()
    assert lines[0] == "off at epoch 31; 1 tablet moves"
    assert lines[1] == "balancing is off since epoch 30 by ada (the night)"
    assert lines[2] == (
        f"balancing of music.songs is off since epoch 20, until {clock(late.until_ms)}: "
        "that has passed, and it counts as on"
    )


def test_balance_shows_request_rates_if_they_have_weight(server: Server, stele: Stele) -> None:
    served = {"n2": msgspec.structs.replace(TOLD, rate=1234.5), "n4": SILENT}
    found = msgspec.structs.replace(balance(BalanceState.BALANCED), rate_weight=50, nodes=served)
    server.answer("GET", "/v1/balance", found)
    other_requests(server)
    text = " ".join(stele("balance", "status").out.split())
    assert "by size and rate: the loads of all 2 nodes are known" in text
    assert "n2 2 1.5 kB 2.0 MB 1,234 95.0 % 3.0 s ago n4 4 never" in text


def test_largest_tablets_of_a_table_are_shown(server: Server, stele: Stele) -> None:
    sizes = TableSizes(
        table="music.songs",
        tablets=8,
        known=7,
        size_bytes=3_500_000,
        target_bytes=5_368_709_120,
        largest=(
            TabletSize(3, 2_000_000, ("n1", "n2"), 1200, 34),
            TabletSize(0, 500, ("n2", "n3")),
        ),
        counted=6,
        rate=1240,
        target_rate=2500,
        wanted=16,
        why="it is hot",
    )
    server.answer("GET", "/v1/balance/sizes", SizesAnswer(epoch=31, state_id="ab", sizes=sizes))
    ran = stele.ok("tablet", "sizes", "music.songs", "--limit", "2")
    text = " ".join(ran.out.split())
    assert "8 tablets of music.songs at epoch 31" in text
    assert "3 2.0 MB 1,200 34 n1 n2 0 500 B ? ? n2 n3" in text
    assert text.endswith(
        "of 7 the size is known: 3.5 MB in all; the target is 5.4 GB each"
        " of 6 the rate is known: 1,240 operations a second in all; 2,500 each at most"
        " it is to have 16 instead of 8 tablets: it is hot"
    )
    (asked,) = server.asked_for("/v1/balance/sizes")
    assert (asked.query["table"], asked.query["limit"]) == (["music.songs"], ["2"])
    assert asked.query["order"] == ["size"]
    assert stele("tablet", "sizes", "music.songs", "--hottest").exit_code == 0
    assert server.asked_for("/v1/balance/sizes")[-1].query["order"] == ["rate"]
    found = json.loads(stele("tablet", "sizes", "music.songs", "--json").out)
    assert found["sizes"]["largest"][0]["tablet"] == 3


def test_resize_warns_that_the_balancer_may_undo_it(server: Server, stele: Stele) -> None:
    sizes = TableSizes(
        table="music.songs",
        tablets=8,
        known=0,
        size_bytes=0,
        target_bytes=1,
        largest=(),
        wanted=8,
        why="the keyspace's initial_tablets is 8",
    )
    server.answer("POST", "/v1/commands", OUTCOME)
    server.answer("GET", "/v1/balance/sizes", SizesAnswer(epoch=31, state_id="ab", sizes=sizes))
    ran = stele.ok("table", "resize", "music.songs", "16", "--no-wait")
    assert ran.out.splitlines()[-1] == (
        "While balancing is on, the balancer may change it back to 8 tablets: the keyspace's"
        " initial_tablets is 8. `stele table alter music.songs --min-tablet-count 16` keeps 16."
    )
    assert "balancer" not in stele("table", "resize", "music.songs", "8", "--no-wait").out


def test_shards_are_shown_after_their_nodes(server: Server, stele: Stele) -> None:
    """Target shards of moves within a node are shown. Nodes with one shard have none."""
    row = {**ROWS[0], "shards": [2, 0, 1], "other_shards": [2, 3, 1]}
    server.answer("GET", "/v1/placements", tablet_page(row, 1))
    shown = stele("tablet", "list", "music.songs").out.splitlines()[2].split()
    assert shown[-3:] == ["n1:2", "n2:0+3", "+n3:1"]
    asked = msgspec.convert({**MOVE, "to_node": "n4", "to_shard": 2}, Request)
    within = msgspec.structs.replace(
        asked, kind=RequestKind.INTRANODE_MIGRATION, to_node="n2", to_shard=0
    )
    told = [what(each, {"t-1": "music.songs"}) for each in (asked, within)]
    assert told == [
        "tablet_migration of music.songs tablet 3 from n2 to n4:2",
        "intranode_migration of music.songs tablet 3 within n2 to shard 0",
    ]


def test_balance_shows_the_load_of_each_shard(server: Server, stele: Stele) -> None:
    two = tuple(BalancedShard(tablets=count, size_bytes=10) for count in (2, 1))
    move = PlannedTabletMove(
        table="music.songs",
        tablet=3,
        from_node="n2",
        to_node="n2",
        to_shard=1,
        kind="intranode_migration",
        why="shard 0 of n2 has 2",
    )
    answer = balance(BalanceState.BALANCING, planned=(move,))
    nodes = {**answer.nodes, "n2": msgspec.structs.replace(answer.nodes["n2"], shards=two)}
    server.answer("GET", "/v1/balance", msgspec.structs.replace(answer, nodes=nodes))
    other_requests(server)
    text = " ".join(stele("balance", "status").out.split())
    assert "of its share on each shard reported n2 3 1.5 kB 2.0 MB 95.0 % 2 1 3.0 s ago" in text
    assert "music.songs 3 n2 n2:1 intranode_migration shard 0 of n2 has 2" in text


def test_tablet_move_sends_the_target_shard(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", OUTCOME)
    words = ("tablet", "move", "music.songs", "3", "--from", "n1", "--no-wait", "--to")
    for to, node, shard in (("n1:2", "n1", 2), ("n4", "n4", -1)):
        stele.ok(*words, to)
        asked = server.asked_for("/v1/commands")[-1]
        (move,) = msgspec.json.decode(asked.body)["command"]["moves"]
        assert (move["to_node"], move["to_shard"]) == (node, shard)
    for wrong in ("n1:x", ":2", "n1:-1", "n1:"):
        assert "is not a place of a replica" in stele(*words, wrong).err


def test_tablet_move_accepts_the_shard_of_the_source(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", OUTCOME)
    row = {"start": 2**62 - 1, "end": -(2**63), "reads": ["n1"], "writes": ["n1"], "shards": [3]}
    server.answer("GET", "/v1/placements", tablet_page(row, ranges=4))
    words = ("tablet", "move", "music.songs", "3", "--to", "n2", "--no-wait", "--from")
    stele.ok(*words, "n1:3")
    (asked,) = server.asked_for("/v1/commands")
    (move,) = msgspec.json.decode(asked.body)["command"]["moves"]
    assert move["from_node"] == "n1"
    assert "is on shard 3 of n1, not on 2" in stele.exits(1, *words, "n1:2").err
