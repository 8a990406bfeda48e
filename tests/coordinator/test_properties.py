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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.booleans())
def test_faults_delay_or_roll_back_but_strand_no_request(seed: int, switches: bool) -> None:
    """At the end every request has ended (I10), and the placements are those of the ring."""
    run = RandomRun(seed, switches=switches)
    run.go(ACTIONS)
    run.calm()
    assert not run.unexplained()
    image = run.world.image
    for name, replication in image.schema.replications().items():
        wanted = ring_now(image).placement(replication)
        assert [(r.start, r.end, sides(r)) for r in image.ring.placements[name].rows] == [
            (r.start, r.end, sides(r)) for r in wanted.rows
        ]


def test_random_runs_cover_all_kinds_of_requests() -> None:
    """Otherwise the property above would be vacuous."""
    ends = Counter[tuple[RequestKind, RequestStatus]]()
    most_open, seen = 0, set[str]()
    for seed in range(60):
        run = RandomRun(seed, nodes=8)
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
