"""The data under the metadata: no acknowledged write may be lost, at any step, to any quorum that reads."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.ring.quorum import quorum_of
from stele.domain.schema.facts import owner_of
from stele.sim.messages import Cell, Key, KvOp, WriteCell, token_of_key
from stele.sim.ranges_in_use import placement_of
from stele.sim.registers import check_registers
from stele.sim.truncation_witness import TruncationWitness
from stele.sim.violation import require

if TYPE_CHECKING:
    from stele.sim.witness import Witness

Cells = Mapping[Key, Cell]


class DataWitness:
    """Newest acknowledged timestamp of each key, and who has it."""

    def __init__(
        self, witness: "Witness", is_gone: Callable[[str], bool], now_s: Callable[[], float]
    ) -> None:
        self.acked: dict[Key, int] = {}
        self.written: dict[int, str] = {}
        self.writes = 0
        self.reads = 0
        self.checks = 0
        self.operations: list[KvOp] = []
        """Of all clients, in the order of their begins or, for reads, of their ends."""
        self._written: dict[int, tuple[Cell, str]] = {}
        """By the number of the operation: what was written, and the key without its keyspace."""
        self.stores: dict[str, Callable[[], Cells]] = {}
        self._witness = witness
        self._is_gone = is_gone
        self._now_s = now_s
        self._free_since: dict[str, float] = {}
        """When the name of a dropped keyspace or table, by its data's id, was free again."""
        self.truncations = TruncationWitness(self.stores, is_gone)
        self._routed: dict[Cell, list[str]] = {}
        self._back = set[tuple[str, str]]()
        self._given_up = set[str]()
        """Keys of registers that may begin anew, with the ids of their data."""

    def schema_changed(self, before: Image, after: Image) -> None:
        self.truncations.schema_changed(after)
        there = {owner_of(data.data_id) for data in after.schema.all_data()}
        for data in before.schema.all_data():
            if owner_of(data.data_id) not in there:
                self._free_since[data.data_id] = self._now_s()

    def routes(self, cell: Cell, data_id: str) -> None:
        """What a node that was asked for a write took the keyspace's name for; a request may come twice."""
        known = self._routed.setdefault(cell, [])
        if data_id not in known:
            known.append(data_id)

    def answers(self, data_id: str, key: str, began_s: float) -> None:
        """A name that is free, or used again, is never answered for by the keyspace that had it before."""
        self.checks += 1
        self.truncations.answers(data_id, key, began_s, self._now_s())
        free_s = self._free_since.get(data_id, math.inf)
        require(
            began_s < free_s,
            "what was dropped never answers",
            f"its name was free at {free_s:.3f} s",
            f"a request for {key} that began at {began_s:.3f} s was answered by {data_id}",
        )

    def floors(self, name: str, key: str) -> dict[str, int]:
        """Newest acknowledged timestamp of a key, by the ids of the data that has this name."""
        ids = [d.data_id for d in self._witness.image.schema.all_data() if d.name == name]
        return {i: self.acked.get((i, key), 0) for i in ids}

    def begins(self, operation: KvOp, cell: Cell | None = None, key: str = "") -> int:
        """The operation's number, by which ``ends`` says how it ended."""
        self.operations.append(operation)
        number = len(self.operations) - 1
        if cell is not None:
            self._written[number] = (cell, key)
        return number

    def ends(self, number: int, operation: KvOp) -> None:
        self.operations[number] = operation

    def check_registers(self) -> None:
        """What clients saw of each key is possible for a register with one moment in each request."""
        found = [op for op in self.operations if op.key]
        for number, (cell, key) in self._written.items():
            told = self.operations[number]
            names = {f"{data_id}/{key}" for data_id in self._routed.get(cell, [])}
            # Where nobody was told of it, it may have happened too, or may yet.
            open_ = replace(told, ended=math.inf, done=False)
            found += [replace(open_, key=name) for name in sorted(names - {told.key})]
        self.checks += check_registers([op for op in found if op.key not in self._given_up])

    def gives_up(self, dead: str) -> None:
        """The operator accepts the loss of what nobody else has."""
        for key in [*self.acked]:
            others = (node for node in self.stores if node != dead)
            if not any(self._timestamp(node, key) >= self.acked[key] for node in others):
                del self.acked[key]
                self._given_up.add("/".join(key))

    def brings_back(self, key: Key, cell: Cell) -> None:
        """A restore puts a value where no client has written it, or not since it was truncated."""
        self._given_up.add("/".join(key))
        self._back.add((key[0], cell.value))

    def issues(self, cell: Cell) -> None:
        self.written[cell.timestamp] = cell.value

    def acknowledges(self, write: WriteCell) -> None:
        """From now on every quorum read must meet this write or a newer one."""
        self.writes += 1
        self.truncations.acknowledges(write.cell.value, self._now_s())
        self.acked[write.key] = max(self.acked.get(write.key, 0), write.cell.timestamp)
        self._check(write.key, "an acknowledged write", f"written by version {write.version}")

    def readable(self) -> list[tuple[str, str]]:
        """Name of the keyspace or table, and key, of all that was acknowledged and stands since."""
        schema = self._witness.image.schema
        found = ((schema.of_data(data_id), key) for data_id, key in self.acked)
        return sorted((keyspace.name, key) for keyspace, key in found if keyspace is not None)

    def check_all(self, invariant: str, when: str) -> None:
        for key in self.acked:
            self._check(key, invariant, when)

    def _check(self, key: Key, invariant: str, when: str) -> None:
        """Too few of the readers lack it to make a quorum. Nodes gone for good answer nobody."""
        placement = placement_of(self._witness.image, key[0])
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

    def read(self, key: Key, floor: int, cell: Cell | None, began_s: float) -> None:
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
            cell is None or self.written.get(found) == cell.value,
            "reads give what was written",
            f"{key} at {found} is {self.written.get(found)}",
            f"a read gave {cell.value if cell else None}",
        )
        if cell is not None and (key[0], cell.value) not in self._back:
            self.truncations.reads(key[0], cell.value, began_s)
