"""Output of ``stele why`` for answers of the coordinator. The sentences of waits: coordinator/test_why.py."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stele.domain.model.requests import Request
from stele.domain.model.topology import TransitionSummary
from stele.domain.names import WaitKind
from stele.runtime.answers.coordinator import BlockerAnswer, WaitProgress
from stele.runtime.answers.session_guard import NodeLiveness
from stele.runtime.answers.tablet_balancer import BalanceState
from stele.words.explain import Case, advice, waiting_line
from tests.cli.conftest import NODES, Server, Stele, at, cluster, request, transition
from tests.cli.test_reads import IDLE, JOIN, LIVENESS, PROGRESS, STREAMING, WORK, under_way
from tests.cli.test_tables import balance

SOURCE = {
    "node_id": "n2",
    "why": "is down, and gives n3 no data",
    "silent_for_s": 8.0,
    "is_down": True,
}
RECEIVER = {"node_id": "n3", "why": "stream: 1000000 of 4000000 bytes", "silent_for_s": 0.1}
STALLED: dict[str, Any] = {
    "request_ids": [JOIN],
    "waiting_for": "stream by n3",
    "blockers": [SOURCE, RECEIVER],
    "kind": "stream",
    "waited_s": 9.0,
    "cause": "n2",
    "limit": {
        "left_s": 52.0,
        "limit_s": 60.0,
        "setting": "STELE_SILENCE_S",
        "then": "it is undone",
    },
}


def test_why_shows_a_stalled_source_with_its_times_and_a_hint(server: Server, stele: Stele) -> None:
    work = PROGRESS["transitions"][0]  # type: ignore[index]
    still = {**work, "nodes": {"n3": {**WORK, "keys_done": 3, "error": "", "still_for_s": 8.0}}}
    still |= {"bytes_per_s": None, "eta_s": None}
    under_way(server, {**PROGRESS, "waits": [STALLED], "transitions": [still]})
    ran = stele("why", "join-n3")
    assert ran.out.splitlines()[1:] == [
        "  in write_both_read_old since epoch 6",
        "  has waited 9.0 s for stream by n3; the cause is n2: is down, and gives n3 no data, last heard"
        " 8.0 s ago; if it makes no progress for 52.0 s more (STELE_SILENCE_S is 60 s), it is undone",
        "  n3 stream running, 1.0 MB of 4.0 MB, no progress for 8.0 s",
        "  how long it will take is unknown: no data has moved lately",
        "  do: start n2, if it is not starting already, or undo it: `stele cancel join-n3-1`",
    ]
    assert ran.out.startswith("join n3 has been running for ")
    sentences = msgspec.json.decode(stele("why", "join-n3", "--json").out)["why"]
    assert sentences[JOIN][0].startswith("has waited 9.0 s for stream by n3; the cause is n2")
    long = {**STALLED, "blockers": [{**SOURCE, "silent_for_s": 40.0}, RECEIVER]}
    server.answers["GET", "/v1/progress"].clear()
    server.answer("GET", "/v1/progress", {**PROGRESS, "waits": [long], "transitions": [still]})
    assert stele("why", "join-n3").out.splitlines()[-1] == (
        "  do: start n2: then it continues; or, if n2 is dead for good, cancel it and replace or remove n2, or"
        " undo it: `stele cancel join-n3-1`"
    )


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ({"eta_s": None}, "how long it will take is unknown: no data has moved yet"),
        ({"eta_s": 4.0, "eta_at_least": True}, "at least 4.0 s to go, by stream_mib_per_s"),
    ],
)
def test_why_of_a_new_stream_estimates_by_the_limit(
    server: Server, stele: Stele, known: dict[str, object], line: str
) -> None:
    work = PROGRESS["transitions"][0]  # type: ignore[index]
    begun = {**work, "bytes_done": 0, "bytes_per_s": None, **known}
    under_way(server, {**PROGRESS, "transitions": [begun]})
    assert line in stele("why").out


def test_why_of_a_slow_stream_shows_the_rate_limit(server: Server, stele: Stele) -> None:
    work = PROGRESS["transitions"][0]  # type: ignore[index]
    wait = {**STALLED, "cause": "", "limit": None, "blockers": [{**RECEIVER, "is_down": False}]}
    slow = {**work, "limit_bytes_per_s": 1 << 20}
    under_way(server, {**PROGRESS, "waits": [wait], "transitions": [slow]})
    out = stele("why").out
    assert "stream_mib_per_s limits each receiver to 1.0 MB/s" in out
    assert "no setting ends this wait" not in out


def test_why_shows_rate_and_remaining_time(server: Server, stele: Stele) -> None:
    under_way(server)
    ran = stele("why")
    assert "n3 stream running, 1.0 MB of 4.0 MB" in ran.out
    assert "about 30.0 s to go at 100.0 kB/s" in ran.out


def test_why_of_a_leave_of_a_dead_node_shows_how_to_cancel_it(server: Server, stele: Stele) -> None:
    dead = {"node_id": "n4", "why": "is down", "silent_for_s": 40.0, "is_down": True}
    wait = {"request_ids": ["leave-n4"], "waiting_for": "dead nodes", "blockers": [dead]}
    wait |= {"kind": "members", "cause": "n4"}
    leave = request("pending", request_id="leave-n4", kind="leave", node_id="n4")
    cluster(server, requests=[leave])
    server.answer("GET", "/v1/progress", {**IDLE, "waits": [wait]})
    ran = stele("why")
    assert "leave n4 has been pending" in ran.out
    assert "waits for dead nodes; the cause is n4: is down, last heard 40.0 s ago" in ran.out
    assert "do: start n4: then it continues, or withdraw the request:" in ran.out
    assert "`stele cancel leave-n4`" in ran.out


def test_why_of_a_wait_for_tablets_hints_at_balance_status(server: Server, stele: Stele) -> None:
    leave = request("pending", request_id="leave-n1", kind="leave", removes_node=True)
    wait = {"request_ids": ["leave-n1"], "waiting_for": "room: 4 of 'n1'", "blockers": []}
    cluster(server, requests=[leave])
    server.answer("GET", "/v1/progress", {**IDLE, "waits": [wait | {"kind": "room"}]})
    ran = stele("why")
    assert "do: wait: `stele balance status` shows its tablets that move; if none does," in ran.out


def test_why_of_a_request_that_waits_for_room_names_the_other_request(
    server: Server, stele: Stele
) -> None:
    wait = {"request_ids": ["leave-n1"], "waiting_for": "room: join-n3-1 moves", "blockers": []}
    wait |= {"kind": "room", "other_request": JOIN}
    leave = request("pending", request_id="leave-n1", kind="leave", node_id="n1")
    cluster(server, requests=[leave, request("running")], transitions=[STREAMING])
    server.answer("GET", "/v1/progress", {**PROGRESS, "waits": [wait]})
    ran = stele("why")
    assert "waits for room: join-n3-1 moves" in ran.out
    assert "do: wait until it has room (`stele why join-n3-1` says what that waits for)" in ran.out


def test_why_when_idle_shows_the_last_ended_request(server: Server, stele: Stele) -> None:
    cluster(server)
    ended = [request("done", finished_epoch=9)]
    server.answer("GET", "/v1/requests", {**at(7), "requests": ended})
    done = {"n1": {**WORK, "status": "success", "keys_done": 1, "error": ""}}
    server.answer("GET", "/v1/progress", {**IDLE, "cleanups": done})
    assert stele("why").out.splitlines() == [
        "No request is pending or running.",
        "  last: join n3, done at epoch 9",
    ]
    shown = msgspec.json.decode(stele("why", "--json").out)
    ended = [*shown["requests"], *shown["finished"]]
    assert [row["node_id"] for row in ended] == ["n3"], "what the lines show"


def test_why_when_idle_lists_members_that_are_down(server: Server, stele: Stele) -> None:
    """The next operation waits for them. Without a session guard, liveness is unknown."""
    cluster(server)
    server.answer("GET", "/v1/progress", IDLE)
    assert stele("why").out.splitlines() == ["No request is pending or running."]
    server.answer("GET", "/guard/v1/nodes", LIVENESS)
    assert stele("why").out.splitlines()[1:] == ["  no heartbeat yet, perhaps starting: n2"]
    down = [{**row, "liveness": "down", "silent_for_s": 40.0} for row in LIVENESS]
    server.answers["GET", "/guard/v1/nodes"].clear()
    server.answer("GET", "/guard/v1/nodes", down)
    both = (
        "n1 (last heard 40.0 s ago), n2 (last heard 40.0 s ago) are down:"
        " operations that need them will wait"
    )
    assert both in stele("why").out
    assert msgspec.json.decode(stele("why", "--json").out)["down"] == msgspec.to_builtins(
        msgspec.convert(down, list[NodeLiveness])
    )
    server.answers["GET", "/v1/nodes"].clear()
    excluded = [NODES[0], {**NODES[1], "excluded_since": 6}]
    server.answer("GET", "/v1/nodes", {**at(7), "nodes": excluded})
    assert "n1 (last heard 40.0 s ago) is down" in stele("why").out, "nothing waits for n2"


def test_why_does_not_call_a_returning_node_down(server: Server, stele: Stele) -> None:
    cluster(server)
    server.answer("GET", "/v1/progress", IDLE)
    row = {**LIVENESS[0], "liveness": "down", "silent_for_s": 0.5, "returning": True}
    server.answer("GET", "/guard/v1/nodes", [row])
    assert stele("why").out.splitlines()[1:] == [
        "  back, and up once the heartbeats are steady: n1"
    ]


def test_why_shows_that_no_node_can_take_the_tablets_of_a_removed_node(
    server: Server, stele: Stele
) -> None:
    no_place = "no other node can take 4 tablets of 'n3'. Add a node in rack r3 of dc1"
    cluster(server, requests=[request("pending", kind="remove", removes_node=True)])
    server.answer("GET", "/v1/progress", IDLE)
    found = msgspec.structs.replace(balance(BalanceState.STALLED), stuck={JOIN: no_place})
    server.answer("GET", "/v1/balance", found)
    assert f"  {no_place}" in stele("why").out.splitlines()
    assert msgspec.json.decode(stele("why", "--json").out)["no_place"] == {JOIN: no_place}


def test_why_of_a_remove_shows_the_number_of_remaining_tablets(
    server: Server, stele: Stele
) -> None:
    cluster(server, requests=[request("pending", kind="remove", node_id="n2", removes_node=True)])
    server.answer("GET", "/v1/progress", IDLE)
    server.answer("GET", "/v1/balance", balance(BalanceState.BALANCING))
    assert "3 tablets are left on n2, beside those that move now" in stele("why").out


def test_why_of_a_failed_request_ends_with_a_hint(server: Server, stele: Stele) -> None:
    cluster(server, requests=[request("failed", error="Rolled back: disk full")])
    server.answer("GET", "/v1/progress", IDLE)
    lines = stele("why", JOIN).out.splitlines()
    assert lines[1] == "  Rolled back: disk full"
    assert lines[-1].startswith("  do: remove the cause and ask again")
    assert "The id n3 cannot be used again" in lines[-1]


@pytest.mark.parametrize(
    ("state", "mark", "says"),
    [
        ("write_both_read_old", "", "undo it: `stele cancel join-n3-1`"),
        ("write_both_read_new", "", "past its point of no return"),
        ("write_both_read_old", "Rolled back", "it is being undone already"),
    ],
)
def test_cancel_is_offered_only_before_the_point_of_no_return(
    state: str, mark: str, says: str
) -> None:
    moving = msgspec.convert(transition(state, JOIN, mark=mark), TransitionSummary)
    wait = WaitProgress((JOIN,), "stream", (BlockerAnswer("n3", "is slow", 0.1),))
    running = msgspec.convert(request("running"), Request)
    assert says in advice(Case(running, moving, wait))


@pytest.mark.parametrize(
    ("silent_for_s", "waited_s", "says"),
    [
        (None, 2.0, "start n3, if it is not starting already"),
        (12.0, 300.0, "start n3, if it is not starting already"),
        (40.0, 2.0, "start n3; or, if dead for good, `stele exclude n3`"),
        (None, 40.0, "start n3; or, if dead for good, `stele exclude n3`"),
    ],
)
def test_exclude_is_suggested_only_after_the_patience(
    silent_for_s: float | None, waited_s: float, says: str
) -> None:
    down = BlockerAnswer("n3", "is silent", silent_for_s, is_down=True)
    wait = WaitProgress((JOIN,), "version 5", (down,), WaitKind.APPLIED, waited_s, cause="n3")
    shown = advice(Case(msgspec.convert(request("running"), Request), None, wait))
    assert shown.startswith(says)
    sole = msgspec.structs.replace(wait, sole_copies="2 ranges of music")
    case = Case(msgspec.convert(request("running"), Request), None, sole)
    assert "exclude" not in advice(case), "it would lose acknowledged writes"


def test_short_barrier_names_no_cause() -> None:
    """Each barrier begins with nodes that are a moment behind."""
    behind = BlockerAnswer("n3", "has applied epoch 58, not 59", 0.1)
    wait = WaitProgress((JOIN,), "version 5", (behind,), WaitKind.APPLIED, 0.1, cause="n3")
    case = Case(msgspec.convert(request("running"), Request), None, wait)
    assert waiting_line(wait) == "has waited 0.1 s for version 5; this takes a moment"
    assert advice(case).startswith("nothing: it continues by itself")
    later = msgspec.structs.replace(wait, waited_s=60.0)
    assert "the cause is n3: has applied epoch 58, not 59" in waiting_line(later)
