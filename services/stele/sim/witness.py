"""The witness sees everything: what is durable, what each process did, what callers were told.

It folds the durable log on its own and holds each observation against the invariants at once, so that a
run stops at the first contradiction. Production code never reads from it.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image, without_memory
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.schemas import HEADER_BYTES
from stele.sim.data_witness import DataWitness
from stele.sim.linearizability import CommandHistory
from stele.sim.log_checks import LogChecks
from stele.sim.node_witness import NodeWitness
from stele.sim.repair_witness import RepairWitness
from stele.sim.restriction_checks import check_restricted
from stele.sim.snapshot_witness import SnapshotWitness
from stele.sim.switch_checks import check_switches
from stele.sim.tablet_witness import TabletWitness
from stele.sim.violation import require

if TYPE_CHECKING:
    from stele.sim.node import Node
    from stele.sim.process import Follower


class Witness:
    """All that is true in a run, and the checks made on it."""

    def __init__(
        self,
        trace: Callable[[str], None],
        is_gone: Callable[[str], bool],
        nodes: Callable[[], Iterable["Node"]],
        now_s: Callable[[], float],
    ) -> None:
        self.images: list[Image] = [EMPTY]
        self.epochs: list[Epoch] = []
        self.losers = 0
        self.checks = 0
        self.commands = CommandHistory(self)
        self.data = DataWitness(self, is_gone, now_s)
        self.nodes = NodeWitness(nodes)
        self.tablets = TabletWitness(is_gone, lambda: self.image)
        self.repairs = RepairWitness(self.data.stores, self.data.acked, is_gone)
        self.snapshots = SnapshotWitness(
            self.data, lambda: {node.name: node.backups for node in nodes()}, is_gone
        )
        self._trace = trace
        self._now_s = now_s
        self._applied: dict[str, int] = {}
        self._log_checks = LogChecks()
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
        check_restricted(before, epoch)
        self._check_epoch(before, after)
        self.on_epoch(before, after)

    def _check_epoch(self, before: Image, after: Image) -> None:
        self.checks += 5
        check_switches(before, after)
        self._log_checks.check(before, after, self.nodes.gates.by_version)
        if after.topology is not before.topology:
            self.nodes.durable(before, after, self.founding)
        else:
            self.nodes.gates.note(after)
        if after.ring is not before.ring or after.topology is not before.topology:
            self.data.check_all("I4", f"at epoch {after.epoch}")
        if after.schema is not before.schema:
            self.data.schema_changed(before, after)
        if after.topology is not before.topology:
            self.data.truncations.topology_changed(before, after, self._now_s())
            self.tablets.topology_changed(before, after)
        if after.requests is not before.requests:
            self.repairs.requests_changed(before, after)
            self.snapshots.changed(before, after)
        elif after.table_snapshots is not before.table_snapshots:
            self.snapshots.changed(before, after)

    # --- processes

    def begins(self, process: "Follower", image: Image) -> None:
        """A process starts from its snapshot, which must be a state of the log (I8)."""
        self._applied[process.name] = image.epoch
        self.nodes.begins(process.name)
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
        self.nodes.applied(process.name, image)
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
            without_memory(image) == without_memory(self.images[epoch]),
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
    topology = image.topology
    open_ = [f"{t.kind} {','.join(t.nodes())} {t.state}" for t in topology.open()]
    return (
        f"epoch {epoch.epoch} {epoch.command} by {epoch.actor or '-'}: {'; '.join(open_) or 'idle'}"
        f" version {topology.version} fence {topology.fence_version}"
    )
