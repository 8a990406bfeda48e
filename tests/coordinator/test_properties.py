"""Parallel operations in random order under random faults, and the invariants that must hold.

``World`` checks every epoch (``invariants.py``: I3, I4, I5, I7, I11, locks, sessions, point of no return).
This file checks the end of each run, and the coverage of the runs.
"""

from collections import Counter
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stele.domain.names import RequestKind, RequestStatus
from stele.domain.rules.ring import ring_now
from stele_simulator.ranges_in_use import sides
from tests.coordinator.random_runs import RandomRun

pytestmark = pytest.mark.slow

ACTIONS: Final = 25
bounded = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
seeds = st.integers(0, 2**32)


def ends_well(run: RandomRun) -> None:
    """Check that every request has ended (I10) and that the placement is that of the ring at the end."""
    run.calm()
    assert not run.unexplained()
    image = run.world.image
    for name, replication in image.schema.replications().items():
        wanted = ring_now(image).placement(replication)
        assert [(r.start, r.end, sides(r)) for r in image.ring.placements[name].rows] == [
            (r.start, r.end, sides(r)) for r in wanted.rows
        ]


@bounded
@given(seeds)
def test_parallel_operations_give_the_result_of_sequential_ones(seed: int) -> None:
    run = RandomRun(seed, faults=False, nodes=8)
    run.go(ACTIONS)
    ends_well(run)


@bounded
@given(seeds)
def test_faults_delay_or_roll_back_but_strand_no_request(seed: int) -> None:
    run = RandomRun(seed, faults=True)
    run.go(ACTIONS)
    ends_well(run)


@settings(bounded, max_examples=14)
@given(seeds)
def test_tables_with_balancing_off_are_not_moved_under_faults(seed: int) -> None:
    run = RandomRun(seed, faults=True, switches=True)
    run.go(ACTIONS)
    ends_well(run)


@settings(bounded, max_examples=10)
@given(seeds)
def test_constant_coordinator_changes_do_not_change_the_result(seed: int) -> None:
    run = RandomRun(seed, faults=False)
    for _ in range(ACTIONS):
        run.act()
        run.world.tick()
        run.replace_brain()
        run.world.tick()
    ends_well(run)


@pytest.mark.parametrize("faults", [False, True])
def test_random_runs_cover_all_kinds_of_requests(*, faults: bool) -> None:
    """Otherwise the properties above would be vacuous."""
    ends = Counter[tuple[RequestKind, RequestStatus]]()
    most_open, seen = 0, set[str]()
    for seed in range(60):
        run = RandomRun(seed, faults=faults, nodes=8)
        run.go(ACTIONS)
        run.calm()
        most_open = max(most_open, run.most_open)
        ends.update((r.kind, r.status) for r in run.world.image.requests.finished())
        seen |= {epoch.command for epoch in run.world.epochs}
    assert most_open >= 3
    elsewhere = {
        RequestKind.ENABLE_FEATURES,
        RequestKind.TABLET_RESTORE,
    }  # these are forgotten at once
    for kind in {*RequestKind} - elsewhere:
        assert ends[kind, RequestStatus.DONE] > 2
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        assert ends[kind, RequestStatus.CANCELLED] > 0
    assert {"advance", "cancel", "create_keyspace", "drop_keyspace"} <= seen
    assert ("advance_fence" in seen) and ("finish_cleanup" in seen)


def _plain(run: RandomRun) -> dict[str, object]:
    """Return the end of a run without its epochs, versions and ids of keyspaces, which depend on the course."""
    nodes = run.world.image.membership.nodes
    return {n: (node.state, node.tokens) for n, node in sorted(nodes.items())}


@settings(bounded, max_examples=10)
@given(seeds)
def test_equal_choices_give_equal_histories(seed: int) -> None:
    """The order of maps, time and randomness have no influence."""

    def go() -> RandomRun:
        run = RandomRun(seed)
        run.go(ACTIONS)
        return run

    one, two = go(), go()
    assert one.world.epochs == two.world.epochs
    assert _plain(one) == _plain(two)
