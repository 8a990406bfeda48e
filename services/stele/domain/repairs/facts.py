"""When tablets were repaired, as facts: one by one, and by columns in a snapshot."""

from stele.domain.base import Fact


class TabletRepaired(Fact, frozen=True):
    """What was acknowledged of a tablet before ``at_ms``, the log's own time, is on each of its replicas, but
    those that were excluded. The table has ``of`` tablets. ``restricted``: it is so among the replicas for
    whose repair the table's request asks, and counts for that alone.
    """

    table_id: str
    tablet: int
    of: int
    at_ms: int
    restricted: bool = False


class RepairsResized(Fact, frozen=True):
    """A table has so many ``tablets`` now: halves were repaired when the whole was, two that become one when
    the older of them was.
    """

    table_id: str
    tablets: int


class RepairsForgotten(Fact, frozen=True):
    """The table, or the data that was repaired, is gone; or the ``restricted`` repair of it is done."""

    table_id: str
    restricted: bool = False


class RepairTimes(Fact, frozen=True):
    """In snapshots only: when tablets from ``first`` on were repaired, of a table that has ``of``.

    ``times`` are milliseconds in 8 bytes each, little endian; 0: never. ``restricted`` is that of
    ``TabletRepaired``.
    """

    table_id: str
    first: int
    of: int
    times: bytes
    restricted: bool = False


RepairsFact = TabletRepaired | RepairsResized | RepairsForgotten | RepairTimes
