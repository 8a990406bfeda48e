"""Invariants of every epoch of a test's world: those of the simulator, and those that need this world.

The true states of nodes are known here, so the gates of steps (I5) are checked with applied epochs instead of
acknowledgements.
"""

from collections.abc import Mapping

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele_simulator import invariants as shared
from stele_simulator import ranges_in_use as in_use
from stele_simulator.generation_checks import check_generations
from stele_simulator.switch_checks import check_switches
from tests.domain.archive.checks import check_archive

Applied = Mapping[str, tuple[Image, int | None]]
"""Applied image of each node, and the oldest version that one of its requests still holds."""


class Invariants:
    """Checks each epoch as it is written, and keeps what later checks need."""

    def __init__(self) -> None:
        self._opened: dict[str, Image] = {}
        self._sessions: set[str] = set()
        self._changed: list[in_use.Change] = []

    def check_step(self, before: Image, after: Image, epoch: Epoch, applied: Applied) -> None:
        check_generations(before, after)
        shared.check_versions(before, after)
        shared.check_row_versions(before, after)
        shared.check_quorums_meet(before, after)
        shared.check_placements(after)
        shared.check_at_rest(after)
        shared.check_locks(after)
        shared.check_no_way_back(before, after)
        shared.check_goes_back(before, after)
        for name in {*after.topology.transitions} - {*before.topology.transitions}:
            self._opened[name] = before
        shared.check_undone(self._opened, before, after)
        shared.check_fresh_sessions(before, after, self._sessions)
        shared.check_sessions(after, self._sessions)
        check_switches(before, after)
        check_archive(before, after, epoch)
        check_versions_before(before, after)
        check_others_stay(before, after, epoch)
        fences = before.topology.fence_version < after.topology.fence_version
        if fences or before.topology.version < after.topology.version:
            check_gate(before, self._changed, applied, fences=fences)
        if before.topology.version < after.topology.version:
            self._changed = list(in_use.changes(before, after))


def check_versions_before(before: Image, after: Image) -> None:
    """I3: a row that gets other replicas records the version of its previous replicas."""
    for name, (one, two) in in_use.shared(before, after).items():
        for row in two.rows:
            there = one.overlapping(in_use.range_of(row))
            if any(in_use.sides(old) != in_use.sides(row) for old in there):
                newest = max(old.version for old in there)
                assert row.version_before == newest, (name, row, there)
            assert row.version_before <= row.version <= after.topology.version


def check_others_stay(before: Image, after: Image, epoch: Epoch) -> None:
    """Only a transition's own move changes its state or session, and only to a new version."""
    moved = {getattr(fact, "transition_id", "") for fact in epoch.facts}
    for transition in before.topology.open():
        now = after.topology.transitions.get(transition.transition_id)
        if now is None or transition.transition_id in moved:
            continue
        assert (now.state, now.session, now.entered_version) == (
            transition.state,
            transition.session,
            transition.entered_version,
        )


def check_gate(
    before: Image, changed: list[in_use.Change], applied: Applied, *, fences: bool
) -> None:
    """I5: a fence moves, or a step starts, only once every quorum has a replica of the previous state.

    Ranges that are rolled back have the same readers before and after, or are reversed while both sides
    receive all writes. No step waits for them.
    """
    topology = before.topology
    epoch = topology.since_epoch if fences else topology.fence_epoch
    passed = {
        n
        for n, (image, holds) in applied.items()
        if image.epoch >= epoch and (holds is None or holds >= topology.version)
    }
    going_back = [t for t in topology.open() if t.mark]
    for change in changed:
        keyspace = before.schema.of_data(change.data_id)
        undone = [
            row
            for transition in going_back
            if keyspace is not None and keyspace.placement in transition.plans
            for row in transition.plans[keyspace.placement].rows
            if row.start < change.token <= row.end or row.end <= row.start
        ]
        after = change.after
        if undone and after is not None and change.before[0] == after[0]:
            continue
        both = after is not None and {*change.before[1]} == {*after[1]}
        if after is not None and both and any(row.new == after[0] for row in undone):
            continue
        for replicas in change.replica_sets():
            excluded = before.membership.excluded()
            word = replicas - excluded <= passed
            assert in_use.holds_back(passed, replicas) or word, (change, passed)
            check_each_dc(before, replicas - excluded, replicas, passed)


def check_each_dc(
    before: Image, can_answer: set[str], replicas: set[str], passed: set[str]
) -> None:
    """EACH_QUORUM, the default: no dc has a quorum without a replica that has applied the state.

    The log may have another level.
    """
    chosen = [name for name in before.features.settings if name.startswith("progress_barrier_")]
    if before.topology.relaxed_to or chosen:
        return
    for dc in {before.membership.nodes[n].dc for n in replicas}:
        there = {n for n in replicas if before.membership.nodes[n].dc == dc}
        late = len(there - passed)
        assert late <= len(there) // 2 or there & can_answer <= passed, (dc, there, passed)
