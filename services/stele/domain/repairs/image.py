"""When tablets were repaired last, at one epoch."""

import msgspec
from immutables import Map

from stele.domain.repairs.times import Ms, Times


class RepairsImage(msgspec.Struct, frozen=True):
    """By the table's id; a table of which nothing was repaired yet is not here. ``restricted`` are times of
    repairs among some replicas, for the table's request that asks for these.
    """

    tables: Map[str, Times] = Map()
    restricted: Map[str, Times] = Map()

    def times(self, *, restricted: bool) -> Map[str, Times]:
        return self.restricted if restricted else self.tables

    def of(self, table_id: str, tablets: int, *, restricted: bool = False) -> Ms:
        """When each of a table's tablets was repaired last, in milliseconds; 0: never."""
        found = self.times(restricted=restricted).get(table_id)
        return (Times.never(tablets) if found is None else found).all()
