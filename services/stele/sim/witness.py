"""The witness sees everything: what is durable, what each process did, what callers were told.

It folds the durable log on its own and holds each observation against the invariants at once, so that a
run stops at the first contradiction. Production code never reads from it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Order
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.schemas import HEADER_BYTES
from stele.sim import invariants
from stele.sim.data_witness import DataWitness
from stele.sim.linearizability import CommandHistory
from stele.sim.messages import PullRange, WriteCell
from stele.sim.violation import require

if TYPE_CHECKING:
    from stele.sim.node import Node
    from stele.sim.process import Follower, Process

_STEP_COMMANDS: Final = frozenset({"start_request", "advance"})


class Witness:
    """All that is true in a run, and the checks made on it."""

    def __init__(self, trace: Callable[[str], None], is_gone: Callable[[str], bool]) -> None:
        self.images: list[Image] = [EMPTY]
        self.epochs: list[Epoch] = []
        self.losers = 0
        self.checks = 0
        self.commands = CommandHistory(self)
        self.data = DataWitness(self, is_gone)
        self._trace = trace
        self._applied: dict[str, int] = {}
        self._seen_epoch: dict[str, int] = {}
        self._drained: dict[str, int] = {}
        self._held: dict[str, Counter[int]] = defaultdict(Counter)
        self._fences: dict[str, int] = {}
        self._sessions = set[str]()
        self._streamed = set[tuple[str, int, str]]()
        self._by_version: dict[int, Image] = {}
        self.told = 0
        """Epochs that watches were told."""
        self._watched: dict[str, int] = {}
        self.on_epoch: Callable[[Image, Image], None] = lambda before, after: None
        self.founding = False
        """True while the first epochs are laid down, before any process lives to acknowledge them."""

    @property
    def image(self) -> Image:
        """The newest durable state."""
        return self.images[-1]

    # --- the log

    def durable(self, offset: int, value: bytes) -> None:
        """The next record is there to stay: first to continue the newest state wins."""
        before = self.image
        if value[HEADER_BYTES : HEADER_BYTES + 16] != before.state_id:
            self.losers += 1
            return
        epoch = decode_epoch(value)
        require(
            epoch.epoch == before.epoch + 1,
            "I1",
            f"epoch {before.epoch + 1} follows {before.epoch}",
            f"offset {offset} says {epoch.epoch}",
        )
        after = evolve(before, epoch)
        self.images.append(after)
        self.epochs.append(epoch)
        self._trace(_line(epoch, after))
        self.commands.won(before, epoch)
        self._check_epoch(before, after, epoch)
        self.on_epoch(before, after)

    def _check_epoch(self, before: Image, after: Image, epoch: Epoch) -> None:
        self.checks += 5
        if after.topology is not before.topology:
            invariants.check_versions(before, after)
            invariants.check_no_way_back(before, after)
            invariants.check_undone(self.images[:-1], after)
            self._check_gate(before, after, epoch)
            self._check_session(before, after)
        if after.ring is not before.ring or after.topology is not before.topology:
            self._check_ring(before, after)
            self.data.check_all("I4", f"at epoch {after.epoch}")

    def _check_ring(self, before: Image, after: Image) -> None:
        topology = after.topology.topology
        self._by_version[topology.version] = after
        live = {v: i for v, i in self._by_version.items() if v >= topology.fence_version}
        self._by_version = live
        for image in live.values():
            invariants.check_quorums_meet(image, after)
        if after.ring is not before.ring:
            invariants.check_placements(after)
        invariants.check_at_rest(after)

    def _check_session(self, before: Image, after: Image) -> None:
        session = after.topology.topology.session
        if session and session != before.topology.topology.session:
            fresh = session not in self._sessions
            require(fresh, "I6", "a session is opened once", f"{session} is opened again")
            self._sessions.add(session)

    def _check_gate(self, before: Image, after: Image, epoch: Epoch) -> None:
        """I5 against what the nodes really did, not against what was heard of it."""
        if self.founding:
            return
        old, new = before.topology.topology, after.topology.topology
        members = set(before.membership.taking_part())
        if new.fence_version > old.fence_version:
            passed = {n for n in members if self._drained.get(n, 0) >= new.fence_version}
            what = f"version {new.fence_version} is fenced only when a quorum has drained the older"
            self._require_gate(members, before, passed, f"{what} (epoch {after.epoch})")
        if epoch.command in _STEP_COMMANDS:
            passed = {n for n in members if self._seen_epoch.get(n, 0) >= old.fence_epoch}
            what = (
                f"{epoch.command} waits until a quorum knows the fence of epoch {old.fence_epoch}"
            )
            self._require_gate(members, before, passed, f"{what} (epoch {after.epoch})")
        if epoch.command == "advance" and old.session and not old.rollback:
            self._check_streamed(before)

    def _require_gate(
        self, members: set[str], before: Image, passed: set[str], expected: str
    ) -> None:
        covered = invariants.gate_covers(before, passed)
        missing = sorted(members - passed)
        require(covered, "I5", expected, f"only {sorted(passed)} have, not {missing}")

    def _check_streamed(self, before: Image) -> None:
        operation, topology = before.topology.operation, before.topology.topology
        assert operation is not None
        rows = [row for plan in operation.plans.values() for row in plan.rows]
        for node_id in sorted({n for row in rows for n in row.new if n not in row.old}):
            done = (node_id, topology.version, topology.session) in self._streamed
            require(
                done,
                "I5",
                f"reads move only when {node_id} has all data of session {topology.session}",
                "it has not finished streaming",
            )

    # --- processes

    def begins(self, process: "Follower", image: Image) -> None:
        """A process starts from its snapshot, which must be a state of the log (I8)."""
        self._applied[process.name] = image.epoch
        self._held.pop(process.name, None)
        known = image.epoch < len(self.images)
        require(
            known and self.images[image.epoch].state_id == image.state_id,
            "I8",
            f"the snapshot of {process.name} is the log's state at epoch {image.epoch}",
            "it has another state id",
        )

    def applied(self, process: "Follower", image: Image) -> None:
        """I1: every process goes through the same states, one by one."""
        self.checks += 1
        fence = image.topology.topology.fence_version
        self._fences[process.name] = max(self._fences.get(process.name, 0), fence)
        last, self._applied[process.name] = self._applied[process.name], image.epoch
        require(
            image.epoch == last + 1 and image.epoch < len(self.images),
            "I1",
            f"{process.name} applies a durable epoch after {last}",
            f"it applied {image.epoch}, the log has {self.image.epoch}",
        )
        require(
            self.images[image.epoch].state_id == image.state_id,
            "I1",
            f"{process.name} has the log's state at epoch {image.epoch}",
            f"its state id is {image.state_id.hex()}",
        )

    def uses(self, node: "Node") -> None:
        """What a node's next acknowledgement could truthfully say."""
        open_session = node.image.topology.topology.session
        if all(session == open_session for session in node.sessions.in_use()):
            current = node.image.topology.topology.version
            oldest = min(
                (v for v, count in self._held[node.name].items() if count), default=current
            )
            self._seen_epoch[node.name] = max(self._seen_epoch.get(node.name, 0), node.image.epoch)
            self._drained[node.name] = max(self._drained.get(node.name, 0), oldest)

    def coordinates(self, node: "Node", version: int, count: int) -> None:
        """A node begins (+1) or ends (-1) a client's request that it routes by ``version``."""
        self._held[node.name][version] += count

    def streamed(self, node: "Process", order: Order) -> None:
        self._streamed.add((node.name, order.version, order.session))

    def has_streamed(self, node_id: str) -> bool:
        """Whether the node has reported all data of the step that the topology is in."""
        topology = self.image.topology.topology
        return (node_id, topology.version, topology.session) in self._streamed

    def streams_in(self, node: "Follower", session: str) -> None:
        """I6: no effect under a session that is not open where it happens."""
        self.checks += 1
        found = node.image.topology.topology.session
        require(
            session == found,
            "I6",
            f"{node.name} takes in data under the open session only",
            f"session {session} wrote while '{found}' was open",
        )

    def gives(self, node: "Follower", pull: PullRange) -> None:
        """I6: a source is behind the fence of the step, or it could accept older writes afterwards."""
        self.checks += 1
        fence = node.image.topology.topology.fence_version
        require(
            fence >= pull.version,
            "I6",
            f"{node.name} gives data of version {pull.version} once older writes are fenced out",
            f"its fence is {fence}",
        )

    def accepts(self, node: "Node", write: WriteCell) -> None:
        """I6: no write of a version below a fence that the replica has ever known."""
        self.checks += 1
        fence = self._fences.get(node.name, 0)
        require(
            write.version >= fence,
            "I6",
            f"{node.name} accepts writes from version {fence} on",
            f"it took {write.key} of version {write.version}",
        )

    # --- watches

    def watched(self, watcher: str, epoch: int, state_id: bytes) -> None:
        """I9: the next epoch, as it is in the log."""
        self.checks += 1
        following = self._watched.get(watcher, 0) + 1
        require(
            epoch == following, "I9", f"{watcher} is told epoch {following}", f"it is told {epoch}"
        )
        known = epoch < len(self.images) and self.images[epoch].state_id
        require(
            known == state_id,
            "I9",
            f"epoch {epoch} is told as it is in the log",
            f"{watcher} is told another",
        )
        self._watched[watcher] = epoch
        self.told += 1

    def watch_begins_anew(self, watcher: str, epoch: int) -> None:
        """It was told that nobody knows what it had missed, and begins with the state at ``epoch``."""
        self._watched[watcher] = epoch

    def recalls(self, name: str, epoch: int, image: Image) -> None:
        """The past that a process tells is what was."""
        self.checks += 1
        require(
            replace(image, decided=None) == replace(self.images[epoch], decided=None),
            "I8",
            f"{name} gives the state at epoch {epoch} as it was",
            "it gives another",
        )

    # --- at the end

    def check_final(self, followers: list["Follower"], offsets: list[bytes]) -> None:
        """I8 and I1: everybody holds one state, which snapshots and full replays give too."""
        wanted = self.image
        for process in followers:
            require(
                process.image == wanted,
                "I1",
                f"{process.name} ends in the log's state",
                f"it differs at epoch {process.image.epoch} (log: {wanted.epoch})",
            )
        replay = Fold()
        for offset, value in enumerate(offsets):
            replay.offer(offset, value)
        require(replay.image == wanted, "I8", "a full replay gives the same state", "it does not")
        require(
            replay.losers == self.losers, "I1", "all readers skip the same losers", "they do not"
        )


def _line(epoch: Epoch, image: Image) -> str:
    topology = image.topology.topology
    operation = image.topology.operation
    node = "" if operation is None else f" {operation.kind} {operation.node_id}"
    state = topology.transition_state or "idle"
    return (
        f"epoch {epoch.epoch} {epoch.command} by {epoch.actor or '-'}: {state}{node}"
        f" version {topology.version} fence {topology.fence_version}"
    )
