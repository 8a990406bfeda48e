"""The log's port: one ordered partition of records, with holes in its offsets. Two adapters keep it.

The contract, which one suite holds against every adapter:
``append`` never waits and promises nothing: the record may be lost, doubled or late, but records of one
appender that arrive do so in their order. ``read`` gives every record from an offset on, in the order that
all readers see. ``end_offset`` is at least the offset after every record that was durable before the call.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

ROOM_POLL_S: Final = 0.01
"""How often adapters ask whether there is room again."""


class Record(NamedTuple):
    """A record where it stands in the log."""

    offset: int
    value: bytes


class Look(NamedTuple):
    """What the topic holds now, asked of the leader that it has now."""

    topic_id: str
    """What the brokers call the topic; a topic that is made anew has another. Empty: they have no ids."""
    end: int
    """The offset after the last durable record."""
    value: bytes | None
    """The record at the offset that was asked for; None when there is none."""
    begin: int = 0
    """The first offset that the topic still holds; told when there is no such record."""


OnRecords = Callable[[list[Record]], None]
OnDoubt = Callable[[str], None]
HasRoom = Callable[[], bool]


def ignore(reason: str) -> None:
    """For readers that have no anchor to look at."""


def always() -> bool:
    """For readers that are done with records when they have been given them."""
    return True


class Ends(NamedTuple):
    """Where a topic begins and ends."""

    begin: int
    """Offset of the oldest record that is still there."""
    end: int
    """Offset after the newest record that no change of leader can take back."""


class LogPast(Protocol):
    """What a log still holds."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        """At most ``limit`` records from ``offset`` on, up to the end at the time of the call."""


class Log(LogPast, Protocol):
    """One cluster's log, or any other topic of one partition."""

    def append(self, value: bytes, key: bytes | None = None) -> None:
        """Send a record off, or drop it when too many are on their way. Waits for nothing."""

    async def end_offset(self) -> int:
        """The offset after the last durable record. Raises TimeoutError after the adapter's limit."""

    async def look(self, offset: int | None) -> Look:
        """The topic afresh, and the record at ``offset``. Raises TimeoutError, KafkaException."""

    def follow(
        self,
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt = ignore,
        has_room: HasRoom = always,
    ) -> None:
        """Call ``on_records`` in the event loop with all records from ``offset`` on, as they come.

        ``on_doubt`` is called, before any later records, when records may have been missed: an error of
        the consumer, a connection that was made anew, a pause of the reading thread.
        While ``has_room``, which any thread may ask, is false, nothing more is read ahead, and a few batches
        at most are still handed over.
        ``on_error`` is called once when following is over for good, such as an offset that is gone.
        """

    async def close(self) -> None:
        """Stop following and send what is buffered, within a time limit."""


class EpochsLog(Log, Protocol):
    """A log that tells where it begins, since it may be truncated."""

    async def ends(self) -> Ends:
        """Raises TimeoutError."""
