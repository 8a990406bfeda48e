"""I5: a version is fenced, and the next one begins, only when enough nodes were ready for it.

The checks compare rows of images, version by version. They never ask production whether a range changed.
"""

from stele.domain.image import EMPTY, Image
from stele.domain.names import NodeState
from stele_simulator import ranges_in_use as in_use
from stele_simulator.ranges_in_use import Sides
from stele_simulator.violation import require


class Gates:
    """The images of all versions, and what each node had done when."""

    def __init__(self) -> None:
        self.checks = 0
        self.by_version: dict[int, Image] = {EMPTY.topology.version: EMPTY}
        """The newest image of each topology version."""
        self.seen_epoch: dict[str, int] = {}
        self.drained: dict[str, int] = {}

    def passes(self, node_id: str, epoch: int, oldest_version: int) -> None:
        """A node has applied an epoch, and works by no version below ``oldest_version`` any more."""
        self.seen_epoch[node_id] = max(self.seen_epoch.get(node_id, 0), epoch)
        self.drained[node_id] = max(self.drained.get(node_id, 0), oldest_version)

    def note(self, image: Image) -> None:
        self.by_version[image.topology.version] = image

    def check(self, before: Image, after: Image) -> None:
        """The topology goes from one image to the next: were the nodes ready?"""
        self._check_fence(before, after)
        if after.topology.version > before.topology.version:
            self._check_fence_known(before, after)

    def _check_fence(self, before: Image, after: Image) -> None:
        """I5: a version is fenced when enough nodes have drained what is older; in passing, when all have."""
        old, new = before.topology, after.topology
        if new.fence_version == old.fence_version:
            return
        self.checks += 1
        members = set(before.membership.taking_part())
        passed = self._drained(before, new.fence_version)
        what = f"version {new.fence_version} is fenced when enough have drained the older"
        if new.version > old.version:
            require(
                members <= self._refusing(before, passed),
                "I5",
                f"epoch {after.epoch} takes the fence along when everybody has drained the older,"
                " and refuses who is excluded",
                f"{sorted(members - self._refusing(before, passed))} have not",
            )
        self._require_gate(before, passed, f"{what} (epoch {after.epoch})")

    def _check_fence_known(self, before: Image, after: Image) -> None:
        """I5: unless all have drained what is older, its fence is known to enough before anything moves."""
        topology = before.topology
        if not topology.settled():
            return
        self.checks += 1
        members = set(before.membership.taking_part())
        if members <= self._refusing(before, self._drained(before, topology.version)):
            return
        passed = {
            n for n in self._drained(before, 0) if self.seen_epoch.get(n, 0) >= topology.fence_epoch
        }
        what = f"enough nodes know the fence of epoch {topology.fence_epoch}"
        self._require_gate(before, passed, f"{what} before epoch {after.epoch}")

    def _drained(self, image: Image, version: int) -> set[str]:
        """Return the nodes that use nothing older than ``version``. An excluded node rejects older requests
        too.
        """
        nodes = {*image.membership.taking_part(), *image.membership.excluded()}
        return {n for n in nodes if self.drained.get(n, 0) >= version}

    def _refusing(self, image: Image, passed: set[str]) -> set[str]:
        """Those of them who know of every excluded node that was a member and has not passed."""
        nodes = image.membership.nodes
        late = image.membership.excluded() - passed
        members = [nodes[n] for n in late if nodes[n].state not in (NodeState.NONE, NodeState.LEFT)]
        newest = max((node.excluded_since for node in members), default=0)
        return {n for n in passed if self.seen_epoch.get(n, 0) >= newest}

    def _require_gate(self, image: Image, passed: set[str], expected: str) -> None:
        """Enough of the readers and of the writers, before and after, of each range of this version."""
        version = image.topology.version
        previous = self.by_version.get(version - 1, EMPTY)
        for change in in_use.changes(previous, image):
            earlier = self._row_before(change.data_id, change.token, version - 1)
            if in_use.goes_back(earlier, change) or in_use.will_go_back(image, change):
                continue
            for replicas in change.replica_sets():
                refusing = self._refusing(image, passed)
                require(
                    in_use.holds_back(passed, replicas)
                    or replicas - image.membership.excluded() <= refusing,
                    "I5",
                    f"{expected}: of {sorted(replicas)}, at token {change.token}",
                    f"only {sorted(passed)} have",
                )

    def _row_before(self, data_id: str, token: int, version: int) -> Sides | None:
        """The row that this version's row has replaced."""
        row = in_use.row_of(self.by_version.get(version, EMPTY), data_id, token)
        for older in range(version - 1, 0, -1):
            found = in_use.row_of(self.by_version.get(older, EMPTY), data_id, token)
            if found != row:
                return found
        return None
