"""What nodes really did: which versions they still use, what they accepted, streamed and gave (I3, I5, I6).

Nothing here asks the production rules. Whether a range changed is read off the rows of the images, version by
version; what a node has applied is what it was seen to apply, not what anybody heard of it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Final

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import TransitionRow
from stele.sim import ranges_in_use as in_use
from stele.sim.gates import Gates
from stele.sim.messages import PullRange, WriteCell
from stele.sim.ranges_in_use import Sides, sides
from stele.sim.violation import require

if TYPE_CHECKING:
    from stele.sim.node import Node
    from stele.sim.process import Follower, Process


_STREAM: Final = (
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.STREAMING,
    TransitionState.REBUILDING,
    TransitionState.REPAIR,
)
"""Under sessions of other states nothing is streamed."""


def _shifts(row: TransitionRow, node_id: str) -> bool:
    """It has the range on another shard afterwards."""
    before, after = (
        dict(zip(nodes, shards or (0,) * len(nodes), strict=True)).get(node_id)
        for nodes, shards in ((row.old, row.old_shards), (row.new, row.new_shards))
    )
    return before != after


class Held(msgspec.Struct, eq=False):
    """A client's request at its coordinating node: the row that it goes by, and the newest version up to
    which that row has stayed the same.
    """

    version: int
    data_id: str
    token: int
    row: Sides
    same_until: int


class NodeWitness:
    """Observations of the data nodes, held against the versions of the log."""

    def __init__(self, nodes: Callable[[], Iterable["Node"]]) -> None:
        self.checks = 0
        self.gates = Gates()
        self._nodes = nodes
        self._held: dict[str, list[Held]] = defaultdict(list)
        self._fences: dict[str, int] = {}
        self._streamed = set[tuple[str, str]]()
        self._receivers: dict[str, dict[str, list[str]]] = {}
        """By session and placement."""

    # --- what nodes do

    def begins(self, name: str) -> None:
        """A process starts: its requests of before are gone."""
        self._held.pop(name, None)

    def applied(self, name: str, image: Image) -> None:
        self._fences[name] = max(self._fences.get(name, 0), image.topology.fence_version)

    def coordinates(self, node: "Node", data_id: str, token: int, row: RangeReplicas) -> Held:
        """A node begins a client's request by this row."""
        version = node.image.topology.version
        held = Held(version, data_id, token, sides(row), version)
        self._held[node.name].append(held)
        return held

    def has_ended(self, node: "Node", held: Held) -> None:
        self._held[node.name].remove(held)

    def uses(self, node: "Node") -> None:
        """What a node's next acknowledgement could truthfully say."""
        image = node.image
        if all(session in image.topology.sessions() for session in node.sessions.in_use()):
            oldest = min(
                (self._same_until(held, image) for held in self._held[node.name]),
                default=image.topology.version,
            )
            self.gates.passes(node.name, image.epoch, oldest)

    def _same_until(self, held: Held, image: Image) -> int:
        """The newest version, as far as this image knows, in which the request's row is still the same."""
        version = image.topology.version
        while held.same_until < version:
            after = (
                image
                if held.same_until + 1 == version
                else self.gates.by_version[held.same_until + 1]
            )
            if in_use.row_of(after, held.data_id, held.token) != held.row:
                break
            held.same_until += 1
        return held.same_until

    def streamed(self, node: "Process", order: Order) -> None:
        self._streamed.add((node.name, order.session))

    def has_streamed(self, node_id: str, sessions: Set[str]) -> bool:
        """Whether the node has all data of one of these sessions."""
        return any((node_id, session) in self._streamed for session in sessions)

    def streams_in(self, node: "Follower", session: str) -> None:
        """I6: no effect under a session that is not open where it happens."""
        self.checks += 1
        open_ = node.image.topology.sessions()
        require(
            session in open_,
            "I6",
            f"{node.name} takes in data under an open session only",
            f"session {session} wrote while {sorted(open_)} were open",
        )

    def gives(self, name: str, image: Image, pull: PullRange) -> None:
        """I6: a source knows the fence of the step, or every member has drained what is older: else it could
        accept older writes afterwards.
        """
        self.checks += 1
        transition = image.topology.of_session(pull.session)
        require(
            transition is not None,
            "I6",
            f"{name} gives data under an open session",
            f"{pull.session} is not open there",
        )
        assert transition is not None
        fence, version = image.topology.fence_version, transition.entered_version
        members = image.membership.taking_part()
        late = sorted(n for n in members if self.gates.drained.get(n, 0) < version)
        require(
            fence >= version or not late,
            "I6",
            f"{name} gives data of version {version} once older writes are fenced out or drained by all",
            f"its fence is {fence}, and {late} have not drained them",
        )

    def accepts(self, node: "Node", write: WriteCell) -> None:
        """I6: no write by a row that changed in a version up to a fence that the replica has ever known."""
        self.checks += 1
        fence, (data_id, _) = self._fences.get(node.name, 0), write.key
        changed = self._changed_in(data_id, write.token, write.version, fence)
        require(
            changed is None,
            "I6",
            f"{node.name} accepts no write of {write.key} by a row older than version {changed},"
            f" its fence is {fence}",
            f"it took one of version {write.version}",
        )

    def serves(self, node: "Node", sender: str) -> None:
        """I6: who is declared dead neither serves nor is served where that is known."""
        self.checks += 1
        for name in (node.name, sender):
            row = node.image.node(name)
            require(
                row is None or not row.excluded_since,
                "I6",
                f"{node.name} serves {sender} while neither is excluded",
                f"{name} is since epoch {row and row.excluded_since}",
            )

    def _changed_in(self, data_id: str, token: int, version: int, fence: int) -> int | None:
        """The newest version after ``version`` and up to ``fence`` that changed the row, or dropped it."""
        for later in range(min(fence, max(self.gates.by_version)), version, -1):
            one = in_use.row_of(self.gates.by_version[later - 1], data_id, token)
            two = in_use.row_of(self.gates.by_version[later], data_id, token)
            if one != two and one is not None:
                return later
        return None

    # --- what the log does with it

    def durable(self, before: Image, after: Image, founding: bool) -> None:
        """The topology has changed: were the nodes ready for it? Then it counts."""
        if not founding:
            self.gates.check(before, after)
            if after.topology.version > before.topology.version:
                self._check_streamed(before, after)
                self._check_in_use(before, after)
        self._note_receivers(after)
        self.gates.note(after)

    def _note_receivers(self, image: Image) -> None:
        """Who gains data when a session opens, and who stays where fewer will: he may lack what those have who
        go. What is created later is written to them from the beginning.
        """
        for transition in image.topology.open():
            if transition.session and transition.session not in self._receivers:
                rebuilt = transition.nodes() if transition.kind is RequestKind.REBUILD else ()
                left_out = image.membership.excluded()
                self._receivers[transition.session] = {
                    name: sorted(
                        {
                            n
                            for r in plan.rows
                            for n in r.new
                            if n not in r.old
                            or _shifts(r, n)
                            or len(r.new) < len(r.old)
                            or (
                                transition.kind is RequestKind.TABLET_REPAIR
                                and n not in left_out
                                and not left_out.issuperset({*r.new} - {n})
                            )
                        }
                        | {*rebuilt}
                    )
                    for name, plan in transition.plans.items()
                }

    def _check_streamed(self, before: Image, after: Image) -> None:
        """I5: reads move only to those who have all the data of the session before, if it is not dropped."""
        for transition in before.topology.open():
            now = after.topology.transitions.get(transition.transition_id)
            moved = now is None or now.state != transition.state
            if not transition.session or transition.mark or not moved:
                continue
            if transition.state not in _STREAM:
                continue
            gaining = self._receivers[transition.session].items()
            kept = {n for name, nodes in gaining for n in nodes if name in transition.plans}
            if transition.kind is RequestKind.TABLET_REPAIR:  # no reads move
                kept -= before.membership.excluded()
            for node_id in sorted(kept):
                self.checks += 1
                require(
                    (node_id, transition.session) in self._streamed,
                    "I5",
                    f"reads move when {node_id} has all data of session {transition.session}",
                    "it has not finished streaming",
                )
                row = before.membership.nodes[node_id]
                require(
                    not row.excluded_since,
                    "I5",
                    f"reads move to {node_id}, which serves them",
                    f"it is excluded since epoch {row.excluded_since}",
                )

    def _check_in_use(self, before: Image, after: Image) -> None:
        """I3 and I4: no third row of a range can still be acknowledged, at least none that does not meet."""
        for change in in_use.changes(before, after):
            if change.after is None:
                continue
            for name, row, version in self._stale_rows(change):
                self.checks += 1
                willing = self._willing(name, change, row, version)
                if in_use.can_be_acknowledged(row, willing):
                    require(
                        row[0] == change.after[0] and in_use.meet(row, change.after),
                        "I3",
                        f"of token {change.token} at most {change.before} and {change.after} are in use"
                        f" at epoch {after.epoch}",
                        f"{name} still goes by {row} of version {version}, and {sorted(willing)} serve it",
                    )

    def _stale_rows(self, change: in_use.Change) -> Iterable[tuple[str, Sides, int]]:
        """Rows that a node's present request, or its next one, would go by, and that are neither of two."""
        known = (change.before, change.after)
        for node in self._nodes():
            if not node.alive or not node.coordinates:
                continue
            own = in_use.row_of(node.image, change.data_id, change.token)
            if own is not None and own not in known:
                yield node.name, own, node.image.topology.version
            for held in self._held[node.name]:
                same = held.data_id == change.data_id and held.token == change.token
                if same and held.row not in known:
                    yield node.name, held.row, held.version

    def _willing(self, asking: str, change: in_use.Change, row: Sides, version: int) -> set[str]:
        """Replicas of a row that would serve this node's request, by the fences and members that they know."""
        found = set[str]()
        for node in self._nodes():
            if node.name not in row[1] or not node.alive or not node.serving:
                continue
            if not node.knows_as_member(asking):
                continue
            fence = node.image.topology.fence_version
            if self._changed_in(change.data_id, change.token, version, fence) is None:
                found.add(node.name)
        return found
