"""Own records by their delivery reports, which come before the records are fetched.

The broker reports where a record stands once readers may see it. When that is the very offset which is read
next, nothing can stand before it: the record counts as read. It is fetched too, and compared then.
"""

from typing import Final, NamedTuple

from stele.log.errors import AnchorLostError
from stele.log.port import Record
from stele.log.pulse import Moment

MAX_AGE_S: Final = 0.005
"""A report names an offset and no topic. So it counts only this soon after a record was sent which was
fetched by now: less than it takes to delete a topic, make it anew, and have it grow to this very offset.
A broker whose controller waits for nothing before it commits took 13 ms at least."""
MAX_REPORTED: Final = 1000
"""Reports of records that were not fetched yet; of more nothing is known before they are."""


class _Reported(NamedTuple):
    value: bytes
    sent: Moment
    taken: bool
    """It counted as read."""


class Delivered:
    """What is read next, joined of what is fetched and what is reported; changes nothing about the order."""

    def __init__(self, next_offset: int, max_age_s: float = MAX_AGE_S) -> None:
        self._next = next_offset
        self._max_age_s = max_age_s
        self._reported: dict[int, _Reported] = {}
        self._last = Record(-1, b"")
        """What was fetched last."""
        self._proven: Moment | None = None
        """When a record was sent that was fetched since: the topic was this one after that."""
        self._over = False

    def end(self) -> None:
        """From now on no report counts."""
        self._over = True

    def reported(self, offset: int, value: bytes, sent: Moment) -> bool:
        """Whether this own record is read herewith; else it is when it is fetched."""
        if offset < self._next:
            if self._last == (offset, value):
                self._proven = sent
            return False
        if self._over or len(self._reported) >= MAX_REPORTED:
            return False
        proven = self._proven
        is_read = offset == self._next and proven is not None and proven.age_s() <= self._max_age_s
        self._reported[offset] = _Reported(value, sent, is_read)
        if is_read:
            self._next = offset + 1
        return is_read

    def fetched(self, records: list[Record]) -> list[Record]:
        """Those that were not read yet. Raises AnchorLostError when one that was read is not there."""
        self._last = records[-1]
        if self._reported:
            records = [record for record in records if not self._was_read(record)]
            gone = [offset for offset in self._reported if offset <= self._last.offset]
            for offset in gone:
                if self._reported.pop(offset).taken:
                    self.end()
                    raise _lost(offset)
        self._next = max(self._next, self._last.offset + 1)
        return records

    def _was_read(self, record: Record) -> bool:
        reported = self._reported.get(record.offset)
        if reported is None or reported.value != record.value:
            return False
        del self._reported[record.offset]
        self._proven = reported.sent
        return reported.taken


def _lost(offset: int) -> AnchorLostError:
    return AnchorLostError(
        offset,
        "the brokers do not give the record that they reported to stand there: it is another topic, or its end"
        " is lost. Nothing is acknowledged any more. Restore the topic from a copy that has it, or run"
        " `stele recover`.",
    )
