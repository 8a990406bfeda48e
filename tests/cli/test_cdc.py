"""``stele cdc``: generations, their streams, and the request for a new one."""

from __future__ import annotations

import json

import pytest

from stele.cli.commands import cdc
from stele.runtime.answers.node import ChangesView, ChangeView
from tests.cli.conftest import NODES, Server, Stele, at, cluster

WRITTEN = {
    "generation_id": "g-2",
    "transition_id": "join-n5",
    "epoch": 30,
    "since_ms": 0,
    "committed_epoch": 0,
    "published": False,
    "streams": 5,
}
PUBLISHED = {
    **WRITTEN,
    "generation_id": "g-1",
    "epoch": 19,
    "since_ms": 1_700_000_000_000,
    "committed_epoch": 20,
    "published": True,
    "streams": 3,
}
STREAMS = [{"end": -100 * n, "stream_id": f"{n:032x}"} for n in (3, 2, 1)]


def test_generations_show_their_start_and_state(server: Server, stele: Stele) -> None:
    page = {**at(31), "cdc_generations": [PUBLISHED, WRITTEN], "next_cursor": ""}
    server.answer("GET", "/v1/cdc/generations", page)
    lines = [line.rstrip() for line in stele("cdc", "generations").out.splitlines()]
    assert lines[0] == "CDC generations at epoch 31"
    assert lines[2].startswith("g-1") and lines[2].endswith("published")
    assert "epoch 19" in lines[2] and "epoch 20" in lines[2] and "2023-11-1" in lines[2]
    assert lines[3].startswith("g-2") and lines[3].endswith("written")
    assert "1970" not in lines[3]
    found = json.loads(stele("cdc", "generations", "--json").out)
    assert found["cdc_generations"] == [PUBLISHED, WRITTEN]


def test_streams_end_at_the_limit_and_can_be_selected_by_token(
    server: Server, stele: Stele
) -> None:
    page = {**at(31), "generation": PUBLISHED, "streams": STREAMS[:2], "next_cursor": "more"}
    server.answer("GET", "/v1/cdc/streams", page)
    ran = stele("cdc", "streams", "g-1", "--limit", "2")
    assert [line.split() for line in ran.out.splitlines()[2:4]] == [
        ["-300", f"{3:032x}"],
        ["-200", f"{2:032x}"],
    ]
    assert "1 more stream:" in ran.out
    one = {**at(31), "generation": PUBLISHED, "streams": STREAMS[:1], "next_cursor": ""}
    server.answer("GET", "/v1/cdc/streams", one)
    ran = stele("cdc", "streams", "--token", "-301")
    assert "more streams" not in ran.out, ran.err
    asked = [question.query for question in server.asked_for("/v1/cdc/streams")]
    assert asked[0]["generation"] == ["g-1"] and asked[0]["limit"] == ["2"]
    assert "generation" not in asked[-1] and asked[-1]["token"] == ["-301"]


def test_epochs_describe_changes_of_generations(server: Server, stele: Stele) -> None:
    facts = [
        {
            "type": "CdcGenerationWritten",
            "generation_id": "g-1",
            "transition_id": "t",
            "epoch": 5,
            "streams": "A" * 64,
        },
        {"type": "CdcGenerationCommitted", "generation_id": "g-1", "since_ms": 0, "epoch": 6},
        {"type": "CdcGenerationPublished", "generation_id": "g-1"},
        {"type": "CdcGenerationForgotten", "generation_id": "g-1"},
    ]
    epoch = {"epoch": 5, "command": "advance", "facts": facts}
    server.answer("GET", "/v1/epochs/5", epoch)
    shown = stele("epoch", "5").out
    assert "CDC generation g-1 is written with 3 streams" in shown
    assert "CDC generation g-1 holds from" in shown
    assert "CDC generation g-1 is published" in shown
    assert "CDC generation g-1 is forgotten" in shown


def pages(server: Server) -> None:
    """Two pages of changes at the one member."""
    cluster(server, nodes=[{**NODES[0], "address": server.url}])
    first = ChangeView(1_700_000_000_123_456, b"ada", "put", b"one\x1b", None)
    then = ChangeView(1_700_000_001_000_000, b"ada", "delete", None, b"one")
    path = "/v1/cdc/changes"
    server.answer("GET", path, ChangesView([first], "a1", 1, more=True, ended=False))
    server.answer("GET", path, ChangesView([then], "b2", 2, more=False, ended=False))
    server.answer("GET", path, ChangesView([], "c3", 3, more=False, ended=True))


def test_tail_prints_pages_of_changes_and_the_last_cursor(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdc, "POLL_S", 0.0)
    pages(server)
    ran = stele("cdc", "tail", "library.books", "--after", "a0", "--stream", "5a")
    assert ran.out.splitlines() == [
        "2023-11-14 22:13:20.123456  put     ada  one\\u001b",
        "2023-11-14 22:13:21.000000  delete  ada  (was one)",
    ]
    assert ran.err == "cursor c3\n"
    asked = [question.query for question in server.asked_for("/v1/cdc/changes")]
    assert [each["after"] for each in asked] == [["a0"], ["a1"], ["b2"]]
    assert asked[0]["table"] == ["library.books"] and asked[0]["stream"] == ["5a"]


def test_tail_ends_after_count_changes(server: Server, stele: Stele) -> None:
    pages(server)
    ran = stele("cdc", "tail", "library.books", "--count", "1")
    assert len(ran.out.splitlines()) == 1 and ran.err == "cursor a1\n"
    assert server.asked_for("/v1/cdc/changes")[0].query["limit"] == ["1"]


def test_tail_without_follow_ends_at_the_newest_change(server: Server, stele: Stele) -> None:
    pages(server)
    ran = stele("cdc", "tail", "library.books", "--no-follow", "--json")
    assert [json.loads(line)["operation"] for line in ran.out.splitlines()] == ["put", "delete"]
    assert ran.err == "cursor b2\n"
