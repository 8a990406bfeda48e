"""What the reading commands show, and where in the log they read."""

from __future__ import annotations

import msgspec
import pytest

from tests.cli.conftest import Server, Stele, request, view

LIVENESS = [
    {"node_id": "n1", "liveness": "up", "epoch": 7, "lag": 0, "version": 3, "silent_for_s": 0.2},
    {"node_id": "n2", "liveness": "down", "epoch": 5, "lag": 2, "version": 3, "silent_for_s": None},
]
OPERATION = {
    "operation": {"request_id": "join-n3-1", "kind": "join", "node_id": "n3"},
    "topology": {"version": 3, "fence_version": 2, "transition_state": "write_both_read_old"},
    "requests": [request("running", actor="ada", reason="more room")],
}
PROGRESS = {
    "term": 2,
    "active": True,
    "waiting_for": "stream by n3",
    "blockers": [{"node_id": "n2", "why": "has applied epoch 5, not 7", "silent_for_s": 8.0}],
    "request_id": "join-n3-1",
    "transition_state": "write_both_read_old",
    "nodes": {"n3": {"kind": "stream", "status": "running", "bytes_done": 1, "bytes_total": 4}},
    "bytes_done": 1_000_000,
    "bytes_total": 4_000_000,
    "eta_s": 30.0,
}


@pytest.mark.parametrize(
    "command",
    [["status"], ["nodes"], ["ring"], ["requests"], ["keyspace", "list"]],
)
def test_every_read_takes_an_epoch_and_a_level(
    server: Server, stele: Stele, command: list[str]
) -> None:
    server.answer("GET", "/v1/state", view(epoch=4))
    ran = stele(*command, "--epoch", "4", "--level", "linearizable")
    assert ran.exit_code == 0, ran.err
    assert server.asked_for("/v1/state")[0].query == {"epoch": ["4"], "level": ["linearizable"]}


@pytest.mark.parametrize("command", [["status"], ["nodes"], ["ring"], ["requests"]])
def test_json_is_the_services_own_answer(server: Server, stele: Stele, command: list[str]) -> None:
    server.answer("GET", "/v1/state", view())
    ran = stele(*command, "--json")
    assert msgspec.json.decode(ran.out) == view()


def test_status_shows_the_operation_its_bytes_and_who_is_down(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/state", view(**OPERATION))
    server.answer("GET", "/v1/nodes", LIVENESS)
    server.answer("GET", "/v1/progress", PROGRESS)
    ran = stele("status")
    assert ran.exit_code == 1  # n2 is down
    for part in (
        "books  epoch 7",
        "version 3, fence 2",
        "join n3 in write_both_read_old",
        "waiting for stream by n3: 1.0 MB of 4.0 MB, 30.0 s to go",
        "down",
    ):
        assert part in ran.out


def test_ring_marks_replicas_that_are_only_written(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/state", view())
    ran = stele("ring", "library")
    assert "n1 +n2" in ran.out
    assert "50.0 %" in ran.out


def test_ring_of_an_unknown_keyspace_names_those_that_are_known(
    server: Server, stele: Stele
) -> None:
    server.answer("GET", "/v1/state", view())
    ran = stele("ring", "cellar")
    assert ran.exit_code == 2
    assert "library" in ran.err


def test_why_tells_what_is_waited_for_who_blocks_and_since_when(
    server: Server, stele: Stele
) -> None:
    blocker = {**PROGRESS["blockers"][0], "blocking_for_s": 12.5}  # type: ignore[index]
    server.answer("GET", "/v1/state", view(**OPERATION))
    server.answer("GET", "/v1/progress", PROGRESS)
    server.answer("GET", "/v1/barrier", {"complete": False, "quorum": True, "blockers": [blocker]})
    ran = stele("why", "join-n3")
    for part in (
        "join n3 is running",
        "waiting for stream by n3",
        "a quorum has passed it",
        "has applied epoch 5, not 7",
        "12.5 s",
        "8.0 s ago",
    ):
        assert part in ran.out


def test_why_of_a_pending_request_names_the_operation_before_it(
    server: Server, stele: Stele
) -> None:
    state = {**OPERATION, "requests": [request("pending", request_id="leave-n1-2", node_id="n1")]}
    server.answer("GET", "/v1/state", view(**state))
    ran = stele("why", "leave-n1-2")
    assert "it waits for its turn: join n3 (join-n3-1) is under way" in ran.out


def test_request_show_takes_the_beginning_of_an_id(server: Server, stele: Stele) -> None:
    done = request("done", finished_epoch=9, started_at_ms=1_000, finished_at_ms=3_500)
    server.answer("GET", "/v1/state", view(requests=[done]))
    ran = stele("request", "show", "join-n3")
    assert "request join-n3-1" in ran.out
    assert "2.5 s" in ran.out


def test_epochs_shows_the_last_ones_in_words(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/state", view(epoch=42))
    facts = [
        {
            "type": "TopologyChanged",
            "topology": {"transition_state": "", "version": 4, "fence_version": 4},
        },
        {"type": "OperationChanged", "operation": None},
        {"type": "SomethingNew", "what": 1},
    ]
    row = {"epoch": 42, "command": "advance", "actor": "coordinator", "facts": facts}
    server.answer("GET", "/v1/epochs", [row])
    ran = stele("epochs", "--last", "5")
    assert server.asked_for("/v1/epochs")[0].query == {"from": ["38"], "limit": ["5"]}
    assert "topology at rest, version 4, fence 4; no operation under way" in ran.out
    assert 'SomethingNew {"what":1}' in ran.out


def test_diff_signs_what_is_new_gone_and_changed(server: Server, stele: Stele) -> None:
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
            "placements": {"dc1:1": {"added": [row], "removed": []}},
        },
    )
    ran = stele("diff", "1", "2")
    assert ran.out.splitlines() == [
        "~ topology: version 1 -> 2",
        "+ node n3: none dc1 r3",
        "~ node n1: state normal -> left",
        "+ placement dc1:1: (1, 2] reads n1, writes n1 n2",
    ]


def test_watch_goes_on_where_a_broken_stream_ended(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/state", view(epoch=3))

    def event(epoch: int) -> str:
        return f'id: {epoch}\ndata: {{"epoch": {epoch}, "command": "noop"}}\n\n'

    server.stream("/v1/epochs", ": ping\n\n" + event(4) + event(5))
    server.stream("/v1/epochs", event(5) + event(6))
    ran = stele("watch", "--count", "3", "--json")
    epochs = [msgspec.json.decode(line)["epoch"] for line in ran.out.splitlines()]
    assert epochs == [4, 5, 6]
    resumed = [asked.headers["last-event-id"] for asked in server.asked_for("/v1/epochs")]
    assert resumed == ["3", "5"]
