"""What the library asks of a store that embeds it. ``docs/services/agent.md`` has one of sixty lines."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from stele.agent.spans import Span


class Row(NamedTuple):
    """``value`` is the store's own: with a timestamp in it say, by which ``merge`` knows the newer one."""

    token: int
    key: bytes
    value: bytes


class Store(Protocol):
    """A node's data, kept by data id, token and key.

    Each function is called in the event loop, and has its effect before it returns: no epoch comes in between.
    So each is to be short, and what it changes is on the disk when it returns. What they raise is reported as
    the reason why an order failed; the coordinator then orders it again.
    """

    def host_id(self) -> str:
        """The id that the data carries; empty before ``claim``."""
        ...

    def claim(self, host_id: str) -> None:
        """Carry this id from now on, for ever."""
        ...

    def data_ids(self) -> Iterable[str]:
        """Whose data is here, what is to be deleted too."""
        ...

    def scan(self, span: Span, after: tuple[int, bytes] | None, limit: int) -> Sequence[Row]:
        """Rows of ``span.keyspace`` with a token in ``span.bounds()``, (start, end], by token and key, behind
        the token and key ``after``; so many at most, none when there are no more.
        """
        ...

    def merge(self, data_id: str, rows: Sequence[Row]) -> None:
        """Take rows in; of two with the same key the newer one stays, whichever comes first."""
        ...

    def delete(self, span: Span, limit: int) -> int:
        """Delete so many rows of the span at most; how many it were."""
        ...

    def size_bytes(self, span: Span) -> int:
        """About how much the span's rows take."""
        ...
