"""The port of a log: one ordered partition of records, with gaps in its offsets.

Two adapters exist. One test suite checks this contract on every adapter. ``append`` never waits and
guarantees no delivery. A record may be lost, duplicated or late, but the records of one appender
that arrive keep their order. ``read`` returns every record from an offset on, in the order that all
readers see. The end in ``ends`` is at least the offset after every record that was durable before
the call.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

ROOM_POLL_S: Final = 0.01
"""Interval at which adapters ask ``has_room`` while it is False."""


class Record(NamedTuple):
    """A record with its offset in the log."""

    offset: int
    value: bytes


class TopicProbe(NamedTuple):
    """The state of the topic, as its current leader reports it."""

    topic_id: str
    """The topic's id; a topic that is created again has another. Empty if brokers have no ids."""
    end: int
    """The offset after the last durable record."""
    value: bytes | None
    """The record at the requested offset; None when there is none."""
    begin: int = 0
    """The first offset that the topic still holds. It is set only when ``value`` is None."""


OnRecords = Callable[[list[Record]], None]
OnDoubt = Callable[[str], None]
HasRoom = Callable[[], bool]


def ignore(reason: str) -> None:
    """Ignore a suspicion, for readers without an anchor."""


def always() -> bool:
    """Return True, for readers that process records as they receive them."""
    return True


class Ends(NamedTuple):
    """First offset and end of a topic."""

    begin: int
    """Offset of the oldest record that the topic still holds."""
    end: int
    """Offset after the newest record that no change of leader can remove."""


class LogPast(Protocol):
    """Read access to the records that a log still holds."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        """Return at most ``limit`` records from ``offset``, up to the end at this time."""


class Log(LogPast, Protocol):
    """One cluster's log, or any other topic of one partition."""

    def append(self, value: bytes, key: bytes | None = None) -> None:
        """Send a record, or drop it when too many are in flight. Does not wait."""

    async def ends(self) -> Ends:
        """Return first offset and end. Raises TimeoutError after the adapter's limit."""

    async def look(self, offset: int | None) -> TopicProbe:
        """Ask the brokers for the topic and the record at ``offset``.

        Raises TimeoutError, KafkaException.
        """

    def follow(
        self,
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt = ignore,
        has_room: HasRoom = always,
    ) -> None:
        """Call ``on_records`` in the event loop with all records from ``offset``, as they arrive.

        ``on_doubt`` is called when records may have been missed, before any later records. Causes
        are an error of the consumer, a new connection, and a pause of the reading thread. While
        ``has_room`` is False, nothing more is read ahead, and a few batches at most are delivered.
        Any thread may call ``has_room``. ``on_error`` is called once when following has ended, for
        example because the offset is gone.
        """

    async def close(self) -> None:
        """Stop following, and send the buffered records, within a time limit."""
