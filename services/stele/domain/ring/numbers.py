"""Numbers of nodes: columns name a node by a small integer that nobody else ever gets.

A fact ``NodeNumbered(number, node_id)`` comes before the first row that names the node, so that every
reader numbers alike, after a snapshot too. Numbers are dense from 0, in the order of these facts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints

PAD: Final = -1
"""Fills a padded list behind its last number; no node has it."""

Numbers = npt.NDArray[np.int32]
"""One padded list of node numbers a row: shape (rows, longest list)."""


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """Node ids by number. Grows at its end only, so an older one is a prefix of a newer one."""

    names: tuple[str, ...] = ()
    numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {name: number for number, name in enumerate(self.names)}
        if len(numbers) != len(self.names):
            raise ValueError("A node id has two numbers; it keeps its first one for ever.")
        object.__setattr__(self, "numbers", numbers)

    def with_node(self, number: int, node_id: str) -> Self:
        """With one more node. Raises ValueError unless both are new and no number is left out."""
        if number != len(self.names):
            raise ValueError(f"'{node_id}' must get the next number, {len(self.names)}: {number}.")
        return type(self)((*self.names, node_id))

    def with_nodes(self, node_ids: Iterable[str]) -> Self:
        """With those of ``node_ids`` that have no number yet, in the order given."""
        new = tuple(name for name in dict.fromkeys(node_ids) if name not in self.numbers)
        return type(self)((*self.names, *new)) if new else self

    def agrees_with(self, other: "NodeNumbers") -> bool:
        """True when no number stands for two nodes: one is a prefix of the other."""
        shared = min(len(self.names), len(other.names))
        return self is other or self.names[:shared] == other.names[:shared]

    def encode(self, lists: Sequence[Sequence[str]]) -> Numbers:
        """The lists by number, padded. Raises KeyError for a node without a number."""
        counts = list(map(len, lists))
        flat = map(self.numbers.__getitem__, chain.from_iterable(lists))
        return padded(np.fromiter(flat, np.int32, sum(counts)), counts, max(counts, default=0))

    def decode(self, numbers: Numbers) -> list[tuple[str, ...]]:
        """The lists by node id, without their padding."""
        if numbers.size == 0:
            return [()] * len(numbers)
        names = np.array((*self.names, None), object)
        by_place = (names[numbers[:, place]].tolist() for place in range(numbers.shape[1]))
        lists = list(zip(*by_place, strict=True))
        for row in np.flatnonzero(numbers[:, -1] == PAD).tolist():
            lists[row] = tuple(name for name in lists[row] if name is not None)
        return lists

    def translate(self, numbers: Numbers, into: "NodeNumbers") -> Numbers:
        """The same lists by the numbers of ``into``, which knows all nodes that they name."""
        known = [into.numbers.get(name, PAD) for name in self.names]
        table: Numbers = np.array([*known, PAD], np.int32)
        translated: Numbers = np.take(table, numbers, mode="wrap")  # PAD, -1, is the last one
        return translated


NO_NODES: Final = NodeNumbers()


def padded(flat: Ints, counts: Sequence[int] | npt.NDArray[np.int64], longest: int) -> Ints:
    """Lists that stand behind each other in ``flat``, ``counts`` of them a row, as a padded matrix."""
    if flat.size == longest * len(counts):
        return flat.reshape(len(counts), longest)
    numbers = np.full((len(counts), longest), PAD, flat.dtype)
    numbers[np.arange(longest) < np.asarray(counts)[:, None]] = flat
    return numbers


def lengths(numbers: Ints) -> Numbers:
    """How long each list is."""
    counts: Numbers = np.count_nonzero(numbers != PAD, axis=1).astype(np.int32)
    return counts
