"""When tablets were repaired, as facts: one by one, and by columns in a snapshot."""

from stele.domain.base import Fact


class TabletRepaired(Fact, frozen=True):
    """What was acknowledged of a tablet before ``at_ms``, the log's own time, is on each of its replicas, but
    those that were excluded. The table has ``of`` tablets.
    """

    table_id: str
    tablet: int
    of: int
    at_ms: int


class RepairsResized(Fact, frozen=True):
    """A table has so many ``tablets`` now: halves were repaired when the whole was, two that become one when
    the older of them was.
    """

    table_id: str
    tablets: int


class RepairsForgotten(Fact, frozen=True):
    """The table, or the data that was repaired, is gone."""

    table_id: str


class RepairTimes(Fact, frozen=True):
    """In snapshots only: when tablets from ``first`` on were repaired, of a table that has ``of``.

    ``times`` are milliseconds in 8 bytes each, little endian; 0: never.
    """

    table_id: str
    first: int
    of: int
    times: bytes


RepairsFact = TabletRepaired | RepairsResized | RepairsForgotten | RepairTimes
