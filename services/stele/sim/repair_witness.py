"""What a repair is worth: each replica has what was acknowledged before it was asked for."""

from collections.abc import Callable, Iterator, Mapping

from stele.domain.image import Image
from stele.domain.requests.facts import Request
from stele.domain.ring.ranges import Range, RangeReplicas, contains
from stele.sim.messages import Cell, Key, token_of_key
from stele.sim.violation import require

Cells = Mapping[Key, Cell]


class RepairWitness:
    """Notes what is acknowledged when a tablet's repair is asked for, and looks at storages when it counts."""

    def __init__(
        self,
        stores: Mapping[str, Callable[[], Cells]],
        acked: Mapping[Key, int],
        is_gone: Callable[[str], bool],
    ) -> None:
        self.checks = 0
        self._stores = stores
        self._acked = acked
        self._is_gone = is_gone
        self._noted: dict[str, dict[Key, int]] = {}
        """By the request: newest acknowledged timestamps of the tablet's keys."""

    def requests_changed(self, before: Image, after: Image) -> None:
        for request in _repairs(after):
            if request.request_id not in self._noted:
                self._noted[request.request_id] = self._acknowledged(after, request)
        for request in _repairs(before):
            if request.request_id not in after.requests.open:
                noted = self._noted.pop(request.request_id)
                if after.repairs is not before.repairs and _counts(after, request):
                    self._check(after, request, noted)

    def _acknowledged(self, image: Image, request: Request) -> dict[Key, int]:
        """Of all tables whose tablets these are."""
        row, tables = _row(image, request), image.schema.tables
        map_ = tables[request.table_id].placement
        data_ids = {table.data_id for table in tables.values() if table.placement == map_}
        range_ = Range(row.start, row.end)
        mine = (k for k in self._acked if k[0] in data_ids and contains(range_, token_of_key(k)))
        return {key: self._acked[key] for key in mine}

    def _check(self, image: Image, request: Request, noted: Mapping[Key, int]) -> None:
        """What all that are left have lost is not the repair's to bring back."""
        excluded, row = image.membership.excluded(), _row(image, request)
        there = [n for n in row.reads if n not in excluded and not self._is_gone(n)]
        for key, timestamp in noted.items():
            lacking = [n for n in there if self._timestamp(n, key) < timestamp]
            known = image.schema.of_data(key[0]) is not None
            if known and len(lacking) < len(there):
                self.checks += 1
                require(
                    not lacking,
                    "a repaired tablet is whole",
                    f"{', '.join(there)} have {key} as it was acknowledged before the repair",
                    f"{', '.join(lacking)} have not, at epoch {image.epoch}",
                )

    def _timestamp(self, node_id: str, key: Key) -> int:
        cell = self._stores[node_id]().get(key)
        return 0 if cell is None else cell.timestamp


def _repairs(image: Image) -> Iterator[Request]:
    return (r for r in image.requests.open.values() if r.repairs_tablet)


def _counts(image: Image, request: Request) -> bool:
    times = image.repairs.tables.get(request.table_id)
    if times is None or len(times) != request.tablet_count:
        return False
    return times[request.tablet] == request.submitted_ms


def _row(image: Image, request: Request) -> RangeReplicas:
    table = image.schema.tables[request.table_id]
    return image.ring.placements[table.placement].rows[request.tablet]
