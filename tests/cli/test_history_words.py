"""Short ids and names in the history, also for dropped objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stele.cli import history
from stele.cli.history import LEAST, ShortIds
from stele.words.units import clock
from tests.cli.conftest import KEYSPACE, Server, Stele, at, cluster, request

FIRST = "01a202f7-4959-7734-8d67-dfd99118538f"
SAME_MOMENT = "01a202f7-4959-7735-8d67-dfd99118538f"
LATER = "01a202f7-495a-7734-8d67-dfd99118538f"
KEYSPACE_ID = "4889549f-8289-50c1-9020-1474398c6c25"
TABLE_ID = "b7f7c1b5-924d-5c0a-814e-ee4cca42abf6"
AT_MS = 1_790_000_000_000


def test_short_ids_are_long_enough_to_be_unique() -> None:
    ids = ShortIds()
    texts = [f"request {FIRST} is done; {FIRST[:8]}", f"{LATER}, {SAME_MOMENT}"]
    assert ids.shortened(texts) == [
        f"request {FIRST[:18]} is done; {FIRST[:8]}",
        f"{LATER[:LEAST]}, {SAME_MOMENT[:18]}",
    ]
    assert ids.shortened([FIRST, KEYSPACE_ID]) == [FIRST[:18], KEYSPACE_ID[:LEAST]]
    assert ShortIds().shortened([FIRST]) == [FIRST[:LEAST]]


def test_memory_for_short_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_KNOWN", 3)
    ids = ShortIds()
    for number in range(10):
        (short,) = ids.shortened([f"01a202f7-4959-7734-8d67-{number:012}"])
        assert len(short) >= LEAST
        assert len(ids._known) <= 3


def dropped(epoch: int, **fact: Any) -> dict[str, Any]:
    return {"epoch": epoch, "command": "advance", "facts": [fact]}


def found(*facts: dict[str, Any]) -> dict[str, Any]:
    epochs = [{"epoch": 3, "command": "advance", "facts": facts}]
    return {"newest": 7, "looked_at": 4, "next_before": 0, "epochs": epochs}


TABLE = {"table_id": TABLE_ID, "keyspace_id": KEYSPACE_ID, "name": "books"}
NAMED = {"type": "KeyspaceChanged", "keyspace": {**KEYSPACE, "keyspace_id": KEYSPACE_ID}}
GONE = (
    dropped(6, type="TableDropped", table_id=TABLE_ID),
    dropped(7, type="KeyspaceDropped", keyspace_id=KEYSPACE_ID),
)


@pytest.mark.parametrize("command", [["epochs"], ["log", "tail"]])
def test_dropped_objects_are_shown_by_name(
    server: Server, stele: Stele, command: list[str]
) -> None:
    cluster(server)
    server.answer("GET", "/v1/epochs", GONE)
    path = "/v1/epochs/search"
    server.answer("GET", path, found({"type": "TableChanged", "table": TABLE}))
    server.answer("GET", path, found({"type": "Part", "index": 1, "facts": [NAMED]}))
    out = stele(*command).out
    assert "table library.books is gone" in out and "keyspace library is gone" in out
    asked = [
        {name: value for name, (value,) in each.query.items()} for each in server.asked_for(path)
    ]
    schema = {"facts": "KeyspaceChanged,TableChanged", "before": "6", "limit": "1"}
    assert asked == [{"about": TABLE_ID, **schema}, {"about": KEYSPACE_ID, **schema}]


def test_object_without_a_name_keeps_its_id_and_is_searched_once(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_LOOKED_FOR", 1)
    cluster(server)
    server.answer("GET", "/v1/epochs", [*GONE, {**GONE[0], "epoch": 8}])
    server.answer("GET", "/v1/epochs/search", found())
    out = stele("log", "tail", "--last", "3").out
    assert out.count(f"table {TABLE_ID[:LEAST]} is gone") == 2
    assert f"keyspace {KEYSPACE_ID[:LEAST]} is gone" in out
    assert len(server.asked_for("/v1/epochs/search")) == 1


def test_log_search_shows_dropped_objects_by_name(server: Server, stele: Stele) -> None:
    cluster(server)
    path = "/v1/epochs/search"
    server.answer("GET", path, {**found(), "epochs": GONE[1:]})
    server.answer("GET", path, found(NAMED))
    assert "keyspace library is gone" in stele("log", "search").out


def test_lists_of_epochs_have_short_ids_and_json_has_full_ids(server: Server, stele: Stele) -> None:
    cluster(server)
    row = {
        "epoch": 7,
        "command": "advance",
        "facts": [{"type": "TransitionFinished", "transition_id": FIRST}],
    }
    server.answer("GET", "/v1/epochs", [row])
    server.answer("GET", "/v1/epochs/7", row)
    for command in (["epochs"], ["log", "tail"]):
        assert f"transition {FIRST[:LEAST]} is over" in stele(*command).out
        assert FIRST in stele(*command, "--json").out
    assert f"transition {FIRST} is over" in stele("epoch", "show", "7").out


def test_diff_formats_times_and_ids_and_json_keeps_raw_values(server: Server, stele: Stele) -> None:
    cluster(server)
    fields = {
        "finished_at_ms": {"before": 0, "after": AT_MS},
        "to_shard": {"before": -1, "after": 2},
    }
    changed = [{"request_id": FIRST, "fields": fields}]
    added = [{"keyspace_id": KEYSPACE_ID, "name": "library"}]
    removed = [{"table_id": TABLE_ID}]
    answer = {
        "requests": {"changed": changed},
        "keyspaces": {"added": added},
        "tables": {"removed": removed},
    }
    server.answer("GET", "/v1/diff", answer)
    assert stele("diff", "1", "2").out.splitlines() == [
        f"~ request {FIRST[:LEAST]}: finished_at never -> {clock(AT_MS)}",
        f"~ request {FIRST[:LEAST]}: to_shard -1 -> 2",
        f"+ keyspace {KEYSPACE_ID[:LEAST]}: library",
        f"- table {TABLE_ID[:LEAST]}",
    ]
    assert msgspec.json.decode(stele("diff", "1", "2", "--json").out) == answer


def test_drop_request_shows_the_name_of_the_dropped_object(server: Server, stele: Stele) -> None:
    about = {"kind": "drop_table", "keyspace_id": KEYSPACE_ID, "table_id": TABLE_ID, "node_id": ""}
    cluster(server, requests=[request("done", **about)], keyspaces=[])
    server.answer("GET", "/v1/tables", {**at(7), "tables": []})
    for _ in range(2):
        path = "/v1/epochs/search"
        for fact in (NAMED, {"type": "TableChanged", "table": TABLE}):
            server.answer("GET", path, found(fact))
    assert "drop_table library.books" in stele("requests").out
    assert "drop_table library.books" in stele("request", "show", "join-n3").out
