"""Where a reader stands at the tail of a flow, and until when it has therefore heard everybody. Pure.

Each answer to a fetch says how long the partition is. Once all records up to there were handed on, everything
that was in the partition when the fetch was answered has been read: reading is confirmed until then. So a
quiet topic confirms as well as a busy one; a reader that is paused, cut off or overwhelmed confirms nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

Partition = int


class Fetched(NamedTuple):
    """A partition's newest answer to a fetch; ``mark`` differs from answer to answer."""

    end_offset: int
    mark: object


class _At(msgspec.Struct):
    """One partition. ``open`` is the answer that is not read to its end yet, and a time before it came."""

    live_from: int
    next_offset: int
    mark: object = None
    open_end: int | None = None
    open_at_s: float = 0.0
    read_until_s: float | None = None


class Tail:
    """Told of each start of reading, each record, and, now and then, of the newest answers."""

    def __init__(self) -> None:
        self._at: dict[Partition, _At] = {}
        self._looked_at_s = 0.0
        self.began_s = 0.0
        """When reading began the last time."""

    def start(
        self, starts: Mapping[Partition, int], ends: Mapping[Partition, int], now_s: float
    ) -> None:
        """Reading begins, or begins anew, at ``starts``; records from ``ends`` on are new."""
        self._at = {each: _At(ends[each], start) for each, start in starts.items()}
        self._looked_at_s = self.began_s = now_s

    def take(self, partition: Partition, offset: int) -> bool:
        """A record was handed on. False when it is from before reading began."""
        at = self._at.get(partition)
        if at is None:
            return True
        at.next_offset = offset + 1
        return offset >= at.live_from

    def look(self, fetched: Mapping[Partition, Fetched], now_s: float) -> float | None:
        """Until when everything has been read, in all partitions; None while that is not known.

        To be called after ``take`` of what had arrived. An answer that was not there at the look before came
        after that look, so that look's time is before it.
        """
        for partition, at in self._at.items():
            answer = fetched.get(partition)
            if answer is not None and answer.mark != at.mark:
                at.mark = answer.mark
                if at.open_end is None:
                    at.open_end, at.open_at_s = answer.end_offset, self._looked_at_s
            if at.open_end is not None and at.next_offset >= at.open_end:
                at.open_end, at.read_until_s = None, at.open_at_s
        self._looked_at_s = now_s
        until = [at.read_until_s for at in self._at.values()]
        known = [each for each in until if each is not None]
        return min(known) if known and len(known) == len(until) else None
