"""The invariants of images along a whole log: what each epoch may do to the one before it."""

from collections.abc import Mapping

from stele.domain.image import Image
from stele_simulator import invariants, member_checks, tablet_checks
from stele_simulator.generation_checks import check_generations


class LogChecks:
    """Check I3, I4, I6, I7, I11, INV-TABL-2 and the locks (docs/design.md), epoch after epoch."""

    def __init__(self) -> None:
        self._sessions = set[str]()
        self._opened: dict[str, Image] = {}

    def check(self, before: Image, after: Image, by_version: Mapping[int, Image]) -> None:
        """``by_version`` has the newest image of each version before ``after``. Raises Violation."""
        if after.membership is not before.membership:
            member_checks.check_excluded(before, after)
            member_checks.check_somebody_stays(before, after)
        member_checks.check_node_states(after)
        if after.topology is not before.topology or after.cdc is not before.cdc:
            check_generations(before, after)
        if after.topology is not before.topology:
            invariants.check_versions(before, after)
            invariants.check_no_way_back(before, after)
            invariants.check_goes_back(before, after)
            self._note_opened(before, after)
            invariants.check_undone(self._opened, before, after)
            invariants.check_fresh_sessions(before, after, self._sessions)
            invariants.check_sessions(after, self._sessions)
            tablet_checks.check_tablets(before, after)
            invariants.check_locks(after)
        if after.ring is not before.ring:
            invariants.check_row_versions(before, after)
            invariants.check_placements(after)
        if after.ring is not before.ring or after.schema is not before.schema:
            member_checks.check_can_be_read(before, after)
        if after.ring is not before.ring or after.topology is not before.topology:
            for version, image in by_version.items():
                if version >= after.topology.fence_version:
                    invariants.check_quorums_meet(image, after)
            invariants.check_at_rest(after)

    def follow(self, before: Image, after: Image) -> None:
        """Take note of an epoch that was checked, or that was there before anything is."""
        self._note_opened(before, after)
        self._sessions |= {t.session for t in after.topology.open() if t.session}

    def _note_opened(self, before: Image, after: Image) -> None:
        """The image before a transition, which may open again under the same id once it was undone."""
        for transition in after.topology.open():
            if transition.transition_id not in before.topology.transitions:
                self._opened[transition.transition_id] = before
