"""``stele table``, ``stele tablet`` and ``stele balance``: what they ask for and what they show."""

from __future__ import annotations

import json

import msgspec

from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancedNode,
    BalanceState,
    PlannedTabletMove,
)
from tests.cli.conftest import Server, Stele, at

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


def test_a_keyspace_is_asked_for_with_tablets(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", OUTCOME)
    ran = stele(
        *("keyspace", "create", "music", "--replication", "dc1=2"),
        *("--tablets", "--initial-tablets", "8"),
    )
    assert ran.exit_code == 0, ran.err
    assert sent(server) == {
        "type": "create_keyspace",
        "name": "music",
        "replication": {"dc1": 2},
        "tablets": True,
        "initial_tablets": 8,
    }


def test_a_table_is_made_and_altered_with_its_options(server: Server, stele: Stele) -> None:
    for word in ("create", "alter"):
        server.asked.clear()
        server.answer("POST", "/v1/commands", OUTCOME)
        ran = stele("table", word, "music.songs", "--min-tablet-count", "8")
        assert ran.exit_code == 0, ran.err
        assert "since epoch 41" in ran.out
        assert sent(server) == {
            "type": f"{word}_table",
            "name": "music.songs",
            "options": {
                "min_tablet_count": 8,
                "max_tablet_count": 0,
                "min_per_shard_tablet_count": 0,
                "expected_data_size_in_gb": 0,
            },
        }


def test_tables_are_listed_with_their_tablets_and_options(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/tables", {**at(31), "tables": [SONGS], "next_cursor": ""})
    server.answer("GET", "/v1/keyspaces", {**at(31), "keyspaces": [KEYSPACE], "next_cursor": ""})
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


def test_tablets_are_numbered_and_show_who_comes(server: Server, stele: Stele) -> None:
    page = {
        **at(31),
        "placement": "tablets:t-1",
        "keyspaces": ["music.songs"],
        "ranges": 3,
        "rows": ROWS,
        "next_cursor": "",
    }
    server.answer("GET", "/v1/placements", page)
    ran = stele("tablet", "list", "music.songs", "--limit", "2")
    assert ran.exit_code == 0, ran.err
    assert ran.out.splitlines()[0].strip() == "3 tablets of music.songs at epoch 31"
    assert ran.out.splitlines()[2].split() == ["0", str(-(2**63)), "0", "7", "n1", "n2", "+n3"]
    assert "1 more tablets" in ran.out
    (asked,) = server.asked_for("/v1/placements")
    assert asked.query["keyspace"] == ["music.songs"]
    found = json.loads(stele("tablet", "list", "music.songs", "--json").out)
    assert [row["reads"] for row in found["tablets"]] == [["n1", "n2"], ["n3"]]


TOLD = BalancedNode(
    tablets=2, size_bytes=1500, capacity_bytes=2_000_000, of_share=0.95, report_age_s=3.0
)
SILENT = BalancedNode(
    tablets=4, size_bytes=None, capacity_bytes=None, of_share=None, report_age_s=None
)


def test_balance_shows_what_moves_next_and_what_cannot(server: Server, stele: Stele) -> None:
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
    ran = stele("balance", "status")
    assert ran.exit_code == 0, ran.err
    text = " ".join(ran.out.split())
    assert "stalled at epoch 31; 1 tablets move" in text
    assert "request leave-n2 cannot go on: no other node can take 2 tablets" in text
    assert "not heard: n3" in text
    assert "moves have failed to n5: nothing goes there for a while" in text
    assert "no room left on n6: nothing goes there" in text
    assert "by count: no load is known of n10" in text
    assert "reported n2 2 1.5 kB 2.0 MB 95.0 % 3.0 s ago n10 4 never" in text
    assert "music.songs 3 n1 n4 migration n1 has 4 replicas" in text
    assert json.loads(stele("balance", "status", "--json").out)["planned"][0]["tablet"] == 3


def test_requests_about_tablets_are_told_by_names(server: Server, stele: Stele) -> None:
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
    server.answer("GET", "/v1/tables", {**at(31), "tables": [SONGS], "next_cursor": ""})
    server.answer("GET", "/v1/keyspaces", {**at(31), "keyspaces": [KEYSPACE], "next_cursor": ""})
    text = " ".join(stele("requests").out.split())
    assert "tablet_migration of music.songs tablet 3 from n1 to n4" in text
