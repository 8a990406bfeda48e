"""The data under the metadata: no acknowledged write may be lost, at any step, to any quorum that reads."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stele.domain.ring.quorum import quorum_of
from stele.sim.messages import Cell, Key, KvOp, WriteCell, token_of_key
from stele.sim.registers import check_registers
from stele.sim.violation import require

if TYPE_CHECKING:
    from stele.sim.witness import Witness

Cells = Mapping[Key, Cell]


class DataWitness:
    """Newest acknowledged timestamp of each key, and who has it."""

    def __init__(self, witness: "Witness", is_gone: Callable[[str], bool]) -> None:
        self.acked: dict[Key, int] = {}
        self.written: dict[tuple[Key, int], str] = {}
        self.writes = 0
        self.reads = 0
        self.checks = 0
        self.operations: list[KvOp] = []
        """Of all clients, in the order of their begins or, for reads, of their ends."""
        self.stores: dict[str, Callable[[], Cells]] = {}
        self._witness = witness
        self._is_gone = is_gone

    def begins(self, operation: KvOp) -> int:
        """The operation's number, by which ``ends`` says how it ended."""
        self.operations.append(operation)
        return len(self.operations) - 1

    def ends(self, number: int, operation: KvOp) -> None:
        self.operations[number] = operation

    def check_registers(self) -> None:
        """What clients saw of each key is possible for a register with one moment in each request."""
        self.checks += check_registers(self.operations)

    def issues(self, key: Key, cell: Cell) -> None:
        self.written[key, cell.timestamp] = cell.value

    def acknowledges(self, write: WriteCell) -> None:
        """From now on every quorum read must meet this write or a newer one."""
        self.writes += 1
        self.acked[write.key] = max(self.acked.get(write.key, 0), write.cell.timestamp)
        self._check(write.key, "an acknowledged write", f"written by version {write.version}")

    def check_all(self, invariant: str, when: str) -> None:
        for key in self.acked:
            self._check(key, invariant, when)

    def _check(self, key: Key, invariant: str, when: str) -> None:
        """Too few of the readers lack it to make a quorum. Nodes gone for good answer nobody."""
        placement = self._witness.image.placement_of(key[0])
        if placement is None:
            return
        self.checks += 1
        row = placement.row_for(token_of_key(key))
        wanted = self.acked[key]
        there = [node for node in row.reads if not self._is_gone(node)]
        lacking = [node for node in there if self._timestamp(node, key) < wanted]
        if len(lacking) < quorum_of(len(row.reads)):
            return
        holders = [n for n in sorted(self.stores) if self._timestamp(n, key) >= wanted]
        require(
            False,
            "no acknowledged write is lost",
            f"{key} at {wanted} is met by every quorum of its readers {row.reads} ({when})",
            f"{lacking} lack it; {holders} have it",
        )

    def _timestamp(self, node: str, key: Key) -> int:
        store = self.stores.get(node)
        cell = store().get(key) if store is not None else None
        return 0 if cell is None else cell.timestamp

    def read(self, key: Key, floor: int, cell: Cell | None) -> None:
        """A quorum read gives the newest write acknowledged before it began, or one issued later."""
        self.reads += 1
        found = 0 if cell is None else cell.timestamp
        require(
            found >= floor,
            "no acknowledged write is lost",
            f"a quorum read of {key} gives timestamp {floor} or newer",
            f"it gave {found}",
        )
        require(
            cell is None or self.written.get((key, found)) == cell.value,
            "reads give what was written",
            f"{key} at {found} is {self.written.get((key, found))}",
            f"a read gave {cell.value if cell else None}",
        )
