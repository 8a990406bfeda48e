"""Steps of a request from its epochs, also between two polls of a follower."""

from __future__ import annotations

from typing import Any

import pytest

from stele.cli.history import RequestHistory
from stele.words.facts import EpochRow
from tests.cli.conftest import Server, Stele
from tests.cli.test_changes import ACCEPTED, follows


def changed(request_id: str, status: str) -> dict[str, Any]:
    return {"type": "RequestChanged", "request": {"request_id": request_id, "status": status}}


def opened(transition_id: str, state: str, *request_ids: str) -> dict[str, Any]:
    subjects = [{"request_id": each, "node_id": each} for each in request_ids]
    transition = {"transition_id": transition_id, "state": state, "subjects": subjects}
    return {"type": "TransitionOpened", "transition": transition}


def moved(transition_id: str, state: str) -> dict[str, Any]:
    return {"type": "TransitionMoved", "transition_id": transition_id, "state": state}


def marked(transition_id: str) -> dict[str, Any]:
    return {"type": "TransitionMarked", "transition_id": transition_id, "mark": "cancelled"}


def finished(transition_id: str) -> dict[str, Any]:
    return {"type": "TransitionFinished", "transition_id": transition_id}


def steps(request_id: str, *epochs: list[dict[str, Any]]) -> list[str]:
    history = RequestHistory(request_id)
    rows = (EpochRow(epoch=n, command="advance", facts=tuple(f)) for n, f in enumerate(epochs))
    return [history.step(row) for row in rows]


def test_steps_are_pending_then_transition_states_then_the_outcome() -> None:
    told = steps(
        "two",
        [changed("two", "pending")],
        [changed("one", "running"), changed("two", "running"), opened("one", "join", "one", "two")],
        [moved("other", "streaming")],
        [moved("one", "write_both_read_old")],
        [finished("one"), changed("one", "done"), changed("two", "done")],
    )
    assert told == ["pending", "join", "join", "write_both_read_old", "done"]


def test_steps_after_a_mark_are_shown_as_being_undone() -> None:
    told = steps(
        "mine",
        [changed("mine", "pending")],
        [changed("mine", "running"), opened("mine", "truncate")],
        [marked("mine")],
        [moved("mine", "rollback")],
        [finished("mine"), changed("mine", "cancelled")],
    )
    undone = ["truncate (being undone)", "rollback (being undone)"]
    assert told == ["pending", "truncate", *undone, "cancelled"]


def test_request_of_a_rolled_back_group_is_pending_again() -> None:
    told = steps(
        "mine",
        [changed("mine", "running"), opened("other", "join", "other", "mine")],
        [marked("other"), moved("other", "rollback")],
        [finished("other"), changed("mine", "pending")],
        [changed("mine", "running"), opened("mine", "join", "mine")],
    )
    assert told == ["join", "rollback (being undone)", "pending", "join"]


@pytest.mark.parametrize("first_part", [8, 5])
def test_follow_reads_missed_steps_from_the_log_with_their_times(
    server: Server, stele: Stele, first_part: int
) -> None:
    """The missed epochs may need more than one page."""
    server.answer("POST", "/v1/commands", ACCEPTED)
    follows(server, "mine", (12, "done", ""))
    of_the_log: tuple[tuple[int, list[dict[str, Any]]], ...] = (
        *((epoch, []) for epoch in (5, 6, 7)),
        (8, [changed("mine", "pending")]),
        (9, [changed("mine", "running"), opened("mine", "write_both_read_old", "mine")]),
        (10, []),
        (11, [moved("mine", "left_token_ring")]),
        (12, [finished("mine"), changed("mine", "done")]),
    )
    rows = [
        {"epoch": epoch, "command": "advance", "at_ms": 1_000 + 500 * (epoch - 8), "facts": facts}
        for epoch, facts in of_the_log
    ]
    server.answer("GET", "/v1/epochs", rows[:first_part])
    server.answer("GET", "/v1/epochs", rows[first_part:])
    ran = stele.ok("decommission", "n1", "--request-id", "mine")
    assert ran.out.splitlines()[2:-1] == [
        "  0.0 s  epoch    8  pending",
        "  0.5 s  epoch    9  write_both_read_old",
        "  1.5 s  epoch   11  left_token_ring",
        "  2.0 s  epoch   12  done",
    ]
    asked = [(part.query["from"], part.query["limit"]) for part in server.asked_for("/v1/epochs")]
    rest = [([str(5 + first_part)], [str(8 - first_part)])] if first_part < 8 else []
    assert asked == [(["5"], ["8"]), *rest]
