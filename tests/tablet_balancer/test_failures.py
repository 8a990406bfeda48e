"""Targets of failed moves are avoided for a while, each time longer, until a move succeeds."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from stele.domain.evolve import Delta, evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.names import BALANCER, RequestKind, RequestStatus
from stele.domain.staging import Part, PartsCommitted
from stele.tablet_balancer.failures import FIRST_PAUSE_S, LONGEST_PAUSE_S, Failures


def request(status: RequestStatus, to_node: str = "n4", from_node: str = "") -> Request:
    return Request(
        request_id="r",
        kind=RequestKind.TABLET_MIGRATION,
        status=status,
        from_node=from_node,
        to_node=to_node,
        started_epoch=7,
    )


def epoch_after(image: Image, *facts: AnyFact) -> Epoch:
    return Epoch(
        prev_state_id=image.state_id,
        state_id=bytes([image.epoch + 1]) * 16,
        epoch=image.epoch + 1,
        request_id="",
        command="advance",
        facts=facts,
    )


def test_failure_in_parts_counts_once_the_parts_are_committed() -> None:
    failed = msgspec.structs.replace(request(RequestStatus.FAILED), actor=BALANCER)
    failures, part = Failures(), Part("s", 0, (RequestChanged(failed),))
    first = epoch_after(EMPTY, part)
    failures.follow(Delta(EMPTY, first), 0.0)
    assert not failures.avoided(1.0)
    staged = evolve(EMPTY, first)
    failures.follow(Delta(staged, epoch_after(staged, PartsCommitted("s", 1))), 0.0)
    assert failures.avoided(1.0) == {"n4"}


def test_pauses_grow_to_a_limit_and_end_with_a_success() -> None:
    failures, now_s, pauses = Failures(), 0.0, list[float]()
    for _ in range(10):
        failures.note(request(RequestStatus.FAILED), now_s)
        failures.note(request(RequestStatus.FAILED), now_s)  # they count once
        began_s = now_s
        while "n4" in failures.avoided(now_s):
            now_s += 1.0
        pauses.append(now_s - began_s)
    assert pauses[0] == FIRST_PAUSE_S and pauses[-1] == LONGEST_PAUSE_S
    assert all(after in (2 * before, LONGEST_PAUSE_S) for before, after in pairwise(pauses))
    failures.note(request(RequestStatus.DONE), now_s)
    failures.note(request(RequestStatus.FAILED), now_s)
    assert "n4" in failures.avoided(now_s + FIRST_PAUSE_S - 1)
    assert "n4" not in failures.avoided(now_s + FIRST_PAUSE_S)


def test_only_failed_requests_of_the_node_count() -> None:
    failures = Failures()
    failures.note(request(RequestStatus.FAILED, "n5"), 0.0)
    failures.note(request(RequestStatus.RUNNING), 0.0)
    failures.note(request(RequestStatus.CANCELLED), 0.0)
    assert failures.avoided(1.0) == {"n5"}


def test_move_that_never_started_does_not_blame_its_node() -> None:
    """The move was rejected, for example because its table was split meanwhile."""
    failures = Failures()
    rejected = msgspec.structs.replace(request(RequestStatus.FAILED), started_epoch=0)
    failures.note(rejected, 0.0)
    assert not failures.avoided(1.0)


def repair(status: RequestStatus, started_epoch: int = 7) -> Request:
    return Request(
        request_id="r",
        kind=RequestKind.TABLET_REPAIR,
        status=status,
        table_id="t",
        tablet=3,
        tablet_count=4,
        submitted_ms=5,
        started_epoch=started_epoch,
    )


@pytest.mark.parametrize("started_epoch", [0, 7])
def test_failed_repair_pauses_its_tablet_and_blames_no_node(started_epoch: int) -> None:
    """This holds for a repair that never started as well: a replica of it was down for too long."""
    failures = Failures()
    failures.note(repair(RequestStatus.FAILED, started_epoch), 0.0)
    assert failures.paused(1.0) == {("t", 3)}
    assert not failures.avoided(1.0)
    assert not failures.paused(FIRST_PAUSE_S)
    failures.note(repair(RequestStatus.DONE), 1.0)
    assert not failures.paused(1.0)


def blamed(failures: Failures, now_s: float) -> tuple[set[str], set[str]]:
    """Return blamed targets and sources."""
    return {*failures.avoided(now_s)}, {*failures.failing(now_s)}


def test_source_that_fails_at_two_targets_is_blamed_instead_of_them() -> None:
    failures, failed = Failures(), RequestStatus.FAILED
    failures.note(request(failed, "n4", "n1"), 0.0)
    assert blamed(failures, 1.0) == ({"n4"}, set())
    failures.note(request(failed, "n5", "n1"), 1.0)
    assert blamed(failures, 2.0) == (set(), {"n1"})
    for source in ("n2", "n3"):  # the target fails, whichever the source
        failures.note(request(failed, "n4", source), 2.0)
    assert blamed(failures, 3.0) == ({"n4"}, {"n1"})
    failures.note(request(RequestStatus.DONE, "n5", "n1"), 3.0)
    assert blamed(failures, 4.0) == ({"n4"}, set())


def test_excluded_node_is_not_blamed_as_a_source_of_a_rebuild() -> None:
    failures = Failures()
    for target in ("n4", "n5"):
        failures.note(request(RequestStatus.FAILED, target, "n1"), 0.0, excluded={"n1"})
    assert blamed(failures, 1.0) == ({"n4", "n5"}, set())
