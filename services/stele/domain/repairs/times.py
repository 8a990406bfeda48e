"""The times of a table's tablets: a column in chunks, copied on write."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

Ms = npt.NDArray[np.int64]
"""Milliseconds since 1970; 0: never."""

CHUNK: Final = 1024
"""Tablets of a chunk: a change of one copies 8 KiB, however many the table has."""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When each tablet was repaired last. Made by ``of`` or ``never``; equal when the times are."""

    chunks: tuple[Ms, ...]

    @classmethod
    def of(cls, times: Ms) -> Self:
        chunks = [times[at : at + CHUNK].astype(np.int64) for at in range(0, len(times), CHUNK)]
        for chunk in chunks:
            chunk.setflags(write=False)
        return cls(tuple(chunks))

    @classmethod
    def never(cls, tablets: int) -> Self:
        return cls.of(np.zeros(tablets, np.int64))

    def __len__(self) -> int:
        return CHUNK * (len(self.chunks) - 1) + len(self.chunks[-1]) if self.chunks else 0

    def __getitem__(self, tablet: int) -> int:
        """Raises IndexError."""
        return int(self.chunks[tablet // CHUNK][tablet % CHUNK])

    def all(self) -> Ms:
        return np.concatenate(self.chunks) if self.chunks else np.zeros(0, np.int64)

    def with_times(self, first: int, times: Ms) -> Self:
        """With these from the tablet ``first`` on."""
        chunks, last = list(self.chunks), first + len(times)
        for at in range(first // CHUNK, -(-last // CHUNK)):
            begin, changed = at * CHUNK, chunks[at].copy()
            low, high = max(first, begin), min(last, begin + CHUNK)
            changed[low - begin : high - begin] = times[low - first : high - first]
            changed.setflags(write=False)
            chunks[at] = changed
        return type(self)(tuple(chunks))

    def resized(self, tablets: int) -> Self:
        """Of a table that has so many tablets instead: halves, or pairs that are one."""
        times = self.all()
        if tablets >= len(times):
            return self.of(np.repeat(times, tablets // len(times)))
        return self.of(times.reshape(tablets, -1).min(axis=1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Times):
            return NotImplemented
        same = len(self) == len(other)
        pairs = zip(self.chunks, other.chunks, strict=False)
        return same and all(one is two or np.array_equal(one, two) for one, two in pairs)

    __hash__ = None  # type: ignore[assignment]  # a column is known by its table
