"""``stele cancel`` compares the placements with those before the request."""

from __future__ import annotations

from stele.cli.commands.topology import differing_rows
from stele.domain.commands import Cancel
from stele.domain.names import TransitionState
from stele.domain.ring.ranges import RangeReplicas
from stele.runtime.answers.metadata_log import PlannedRow
from tests.cli.conftest import Server, Stele, at, request, transition
from tests.coordinator.stories import joining

ACCEPTED = {"request_id": "x", "applied": True, "epoch": 8, "state_id": "00"}
ROW = {"start": 0, "end": 100, "old": ["n1"], "new": ["n3"]}


def cancelled(
    server: Server, *rows: dict[str, object], placement: str = "dc1:1", keyspace_id: str = ""
) -> None:
    """Answer with a cancelled request that had begun, and with ``dc1:1`` at its end.

    ``placement`` is the one that it planned to change.
    """
    ended = request(
        "cancelled",
        started_epoch=6,
        finished_epoch=9,
        finished_at_ms=3_000,
        keyspace_id=keyspace_id,
    )
    moving = transition("write_both_read_old", "join-n3-1")
    server.answer("GET", "/v1/requests", {**at(8), "requests": [ended]})
    server.answer("POST", "/v1/commands", ACCEPTED)
    answer = {**at(9), "request": ended, "transition": moving}
    server.answer("GET", "/v1/requests/join-n3-1", answer)
    page = {**at(6), "transition": moving, "rows": [{**ROW, "placement": placement}]}
    server.answer("GET", "/v1/transitions/join-n3-1", page)
    found = {"placement": "dc1:1", "keyspaces": ["library"], "ranges": len(rows), "rows": rows}
    server.answer("GET", "/v1/placements", {**at(9), **found})


def row(start: int, end: int, reads: list[str], writes: list[str]) -> dict[str, object]:
    return {"start": start, "end": end, "reads": reads, "writes": writes}


LOW, HIGH = -(2**63), 2**63 - 1


def test_cancel_ends_with_a_comparison_of_placements(server: Server, stele: Stele) -> None:
    cancelled(server, row(LOW, LOW, ["n1"], ["n1"]))
    ran = stele.ok("cancel", "join-n3")
    assert ran.out.splitlines()[-1] == (
        "the placements are as before: 1 range that it had to change compared at epoch 9"
    )
    assert server.asked_for("/v1/placements")[0].query["epoch"] == ["9"]
    asked = [a.query.get("epoch") for a in server.asked_for("/v1/requests/join-n3-1")]
    assert asked[-1] == ["6"], "as it was when it began"


def test_cancel_that_left_changed_ranges_fails(server: Server, stele: Stele) -> None:
    cancelled(server, row(LOW, 50, ["n1"], ["n1"]), row(50, LOW, ["n1"], ["n1", "n3"]))
    ran = stele.exits(1, "cancel", "join-n3")
    assert ran.out.splitlines()[-1] == "1 of 1 range is not as before it began"


def test_cancelled_replication_change_is_compared_in_the_shared_placement(
    server: Server, stele: Stele
) -> None:
    """The separate placement, named by the request, is dropped when the request ends."""
    cancelled(server, row(LOW, LOW, ["n1"], ["n1"]), placement="join-n3-1", keyspace_id="k-1")
    library = {"keyspace_id": "k-1", "name": "k", "replication": {"dc1": 1}, "placement": "dc1:1"}
    server.answer("GET", "/v1/keyspaces", {**at(9), "keyspaces": [library]})
    assert "the placements are as before: 1 range" in stele.ok("cancel", "join-n3").out
    assert server.asked_for("/v1/placements")[0].query["placement"] == ["dc1:1"]


def test_cancel_compares_no_placement_of_a_dropped_keyspace(server: Server, stele: Stele) -> None:
    cancelled(server)
    server.answers["GET", "/v1/placements"].clear()
    gone = {"code": "unknown_placement", "message": "There is no placement 'dc1:1'."}
    server.answer("GET", "/v1/placements", gone, status=404)
    ran = stele.ok("cancel", "join-n3")
    assert ran.out.splitlines()[-1] == "no range has other replicas than before"


def test_cancel_of_a_pending_request_reports_no_changed_range(server: Server, stele: Stele) -> None:
    cancelled(server)
    ended = request("cancelled", finished_epoch=9, finished_at_ms=3_000)
    server.answers["GET", "/v1/requests/join-n3-1"].clear()
    answer = {**at(9), "request": ended, "transition": None}
    server.answer("GET", "/v1/requests/join-n3-1", answer)
    ran = stele("cancel", "join-n3")
    assert ran.out.splitlines()[-1] == "no range has other replicas than before"


def test_rolled_back_rows_count_as_restored_only_after_the_rollback() -> None:
    world = joining(TransitionState.WRITE_BOTH_READ_OLD, rf=2)
    plans = world.transition("join-a2").plans
    (name,) = plans
    planned = [PlannedRow(name, r.start, r.end, r.old, r.new) for r in plans[name].rows]

    def rows() -> tuple[RangeReplicas, ...]:
        return world.image.ring.placement(name).rows

    assert [*differing_rows(planned, rows())] == planned
    assert world.apply(Cancel("join-a2")) is None
    world.run()
    assert planned and [*differing_rows(planned, rows())] == []
