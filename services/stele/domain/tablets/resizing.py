"""Which tables are to have another number of tablets, and which are not any more (seed 000, tablet resize)."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.ring.placement import Placement
from stele.domain.schema.facts import TableOptions
from stele.domain.tablets.groups import combined, standing
from stele.domain.tablets.hot import Hottest, hottest_of
from stele.domain.tablets.maps import holders, maps_of
from stele.domain.tablets.sizing import (
    ByRate,
    Goals,
    Present,
    Scope,
    Sized,
    by_rate,
    fewest,
    most,
    rounded,
    scopes_of,
)
from stele.domain.tablets.stuck import Stuck
from stele.domain.tablets.tablet_stats import TabletStats

MOST_AT_ONCE: Final = 10
"""Resizes that are asked for in one look (Scylla: max_new_resize_requests)."""
MOST_WAITING: Final = 512
"""Resizes of all tables that are under way: each costs the coordinator a look."""


class Resize(msgspec.Struct, frozen=True):
    """A table, how many tablets it is to have, and why."""

    table: str
    tablets: int
    why: str


class Sizing(NamedTuple):
    """What to ask for now, and what to cancel."""

    resizes: tuple[Resize, ...] = ()
    revoked: tuple[Stuck, ...] = ()


NO_RATES: Final = ByRate(Sized(0, ""), Sized(0, ""))


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What sizing knows of a table. ``apart``: why its siblings cannot be brought together; empty: they can.
    It stands for ``together`` tables that have one map.
    """

    name: str
    data_id: str = ""
    count: int
    options: TableOptions
    fewest: Sized
    most: Sized
    scopes: Mapping[str, Scope]
    by_rate: ByRate = NO_RATES
    asked: Request | None = None
    apart: str = ""
    together: int = 1

    def replicas(self, count: int, scope: Scope) -> int:
        """Of so many tablets of each of its tables."""
        return count * scope.replication_factor * self.together


class Loaded(NamedTuple):
    """The bytes of one copy of a table's data, and what its hottest tablet serves, as far as they are known."""

    size_bytes: float | None = None
    hottest: Hottest | None = None


UNKNOWN: Final = Loaded()


def sizing(
    image: Image,
    loads: Mapping[str, Loaded],
    down: Set[str] = frozenset(),
    off: Set[str] = frozenset(),
) -> Sizing:
    """``loads`` are by the id of tables' data. With tablets on nodes that are ``down`` nothing is merged, and
    those tables that are ``off``, by name, keep their number.
    """
    found = tables_of(image, loads, down)
    resizes, revoked = list[Resize](), list[Stuck]()
    room = MOST_WAITING - sum(each.asked is not None for each in found)
    for each, aim in zip(found, aims(found, _goals(image).per_shard), strict=True):
        if each.name in off:
            continue
        if each.asked is None:
            if aim.count != each.count and len(resizes) < min(room, MOST_AT_ONCE):
                resizes.append(Resize(each.name, aim.count, aim.reason))
        elif may_be_revoked(each.asked) and aim.count != each.asked.tablet_count:
            revoked.append(Stuck(each.asked.request_id, f"not wanted any more: {aim.reason}"))
    return Sizing(tuple(resizes), tuple(revoked))


def why_so_many(
    image: Image, loads: Mapping[str, Loaded], down: Set[str], data_id: str
) -> tuple[int, str]:
    """How many tablets a table that stays is to have next, and why."""
    found = tables_of(image, loads, down)
    pairs = zip(found, aims(found, _goals(image).per_shard), strict=True)
    return next((aim.count, aim.reason) for each, aim in pairs if each.data_id == data_id)


def aims(tables: Sequence[Table], per_shard: int) -> list[Sized]:
    """What each table is to have next: as many as it has, twice as many, or half.

    Shards have so many of all tables, at most, but for what rounding adds: of what all need, or have, each
    table gets the same part. What a table is split up to does not depend on how many there are of any, and it
    is never merged below that; so there is an end.

    What rates ask for does depend on it, so it has what room is left alone: it is split only where all tables
    then have no more than shards are to have, and stays so until they have twice that.
    """
    least = _factors(tables, [each.fewest for each in tables], per_shard)
    now = _factors(tables, [each.most for each in tables], per_shard)
    bounds = [
        (
            rounded(_part(each.fewest, _of(each, least)), each.options),
            rounded(_part(each.most, _of(each, now)), each.options),
        )
        for each in tables
    ]
    room = _Room(tables, bounds, per_shard)
    return [_aim(each, bound, room) for each, bound in zip(tables, bounds, strict=True)]


def _aim(each: Table, bounds: tuple[Sized, Sized], room: "_Room") -> Sized:
    low, high = bounds
    if each.count < low.count:
        return Sized(2 * each.count, low.reason)
    rate, why = each.by_rate, high.reason
    if rate.too_hot:
        why = rate.split.reason
    if each.count < rate.split.count:
        if room.has_some(each):
            return Sized(2 * each.count, rate.split.reason)
        why = f"{why}; but all tables together would have too many replicas for each shard"
    keep = () if room.is_exceeded(each) else (rate.keep,)
    highest = max(low, high, *keep, key=lambda sized: sized.count)
    if each.count > highest.count:
        return (
            Sized(each.count, each.apart) if each.apart else Sized(each.count // 2, highest.reason)
        )
    return Sized(each.count, why)


class _Room:
    """Replicas of all tables in each dc, once sizes have what they ask for, and what its shards may have."""

    def __init__(
        self, tables: Sequence[Table], bounds: Sequence[tuple[Sized, Sized]], per_shard: int
    ) -> None:
        self._most, self._end, self._now = dict[str, int](), Counter[str](), Counter[str]()
        for each, (low, high) in zip(tables, bounds, strict=True):
            highest = max(low.count, high.count, each.by_rate.keep.count)
            end = min(max(each.count, low.count), highest)
            for dc, scope in each.scopes.items():
                self._most[dc] = per_shard * scope.shards
                self._end[dc] += each.replicas(end, scope)
                self._now[dc] += each.replicas(max(each.count, end), scope)

    def has_some(self, each: Table) -> bool:
        """Whether a table can be split; it then has the room."""
        more = {dc: each.replicas(each.count, scope) for dc, scope in each.scopes.items()}
        if any(self._now[dc] + count > self._most[dc] for dc, count in more.items()):
            return False
        self._now.update(more)
        return True

    def is_exceeded(self, each: Table) -> bool:
        """By twice: whoever has split tables has not gone so far."""
        return any(self._end[dc] > 2 * self._most[dc] for dc in each.scopes)


def _part(sized: Sized, factor: float) -> Sized:
    if factor >= 1.0:
        return sized
    text = f"{sized.reason}; but all tables together have too many replicas for each shard"
    return Sized(math.ceil(sized.count * factor), text)


def _of(each: Table, factors: Mapping[str, float]) -> float:
    return min((factors[dc] for dc in each.scopes), default=1.0)


def _factors(tables: Sequence[Table], counts: Sequence[Sized], per_shard: int) -> dict[str, float]:
    """By dc, how much of these counts its shards are to have."""
    replicas, shards = dict[str, int](), dict[str, int]()
    for each, sized in zip(tables, counts, strict=True):
        for dc, scope in each.scopes.items():
            replicas[dc] = replicas.get(dc, 0) + each.replicas(sized.count, scope)
            shards[dc] = scope.shards
    return {
        dc: min(1.0, per_shard * shards[dc] / wanted) if wanted else 1.0
        for dc, wanted in replicas.items()
    }


def loaded(stats: Mapping[str, TabletStats]) -> dict[str, Loaded]:
    """By the id of tables' data what is known of all tablets together."""
    return {name: Loaded(each.size_bytes(), hottest_of(each)) for name, each in stats.items()}


def tables_of(image: Image, loads: Mapping[str, Loaded], down: Set[str]) -> list[Table]:
    """All that stay, those that have one map as one; see ``sizing``."""
    schema, goals = image.schema, _goals(image)
    asked = {r.table_id: r for r in image.requests.open.values() if r.resizes}
    found = list[Table]()
    for table, placement in maps_of(image):
        data = schema.data_of(table)
        if data.dropped_version:
            continue
        keyspace, request = schema.by_id[table.keyspace_id], asked.get(table.table_id)
        known = loads.get(data.data_id, UNKNOWN)
        present = Present(
            count=len(placement),
            size_bytes=known.size_bytes,
            resizing_to=0 if request is None else request.tablet_count,
            hottest=known.hottest,
        )
        scopes = scopes_of(image, keyspace, {})
        tables = standing(image, table)
        options = combined([each.options for each in tables])
        about = (options, keyspace.initial_tablets, scopes, present, goals)
        found.append(
            Table(
                name=data.name,
                data_id=data.data_id,
                count=len(placement),
                options=options,
                fewest=_of_all(fewest(*about), len(tables)),
                most=_of_all(most(*about), len(tables)),
                scopes=scopes,
                by_rate=_rates_of_all(by_rate(options, present, goals), len(tables)),
                asked=request,
                apart=_why_apart(image, placement, down),
                together=len(tables),
            )
        )
    return found


def _of_all(sized: Sized, tables: int) -> Sized:
    """Says so where it is of co-located tables together."""
    return (
        sized if tables == 1 else Sized(sized.count, f"{sized.reason} ({tables} tables together)")
    )


def _rates_of_all(rates: ByRate, tables: int) -> ByRate:
    return rates._replace(split=_of_all(rates.split, tables), keep=_of_all(rates.keep, tables))


def _why_apart(image: Image, placement: Placement, down: Set[str]) -> str:
    """Tablets of a node that is away stay there, and their siblings may be elsewhere."""
    away = image.membership.excluded() | down
    holding = sorted(away & holders(placement)) if away else []
    return (
        f"its tablets cannot be brought together while {', '.join(holding)} is away"
        if holding
        else ""
    )


def _goals(image: Image) -> Goals:
    return Goals.of(image.features.settings)


def may_be_revoked(asked: Request) -> bool:
    """What somebody else asked for is theirs."""
    return asked.actor == BALANCER and asked.status is RequestStatus.PENDING
