"""When tablets were repaired last, at one epoch."""

import msgspec
from immutables import Map

from stele.domain.repairs.times import Ms, Times


class RepairsImage(msgspec.Struct, frozen=True):
    """By the table's id; a table of which nothing was repaired yet is not here."""

    tables: Map[str, Times] = Map()

    def of(self, table_id: str, tablets: int) -> Ms:
        """When each of a table's tablets was repaired last, in milliseconds; 0: never."""
        found = self.tables.get(table_id)
        return (Times.never(tablets) if found is None else found).all()
