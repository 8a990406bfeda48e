"""Decide which tables need another number of tablets, and which resizes to revoke.

Source: ScyllaDB, topology-over-raft.md, "Tablet resize".
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from itertools import compress
from typing import Final, NamedTuple

import msgspec
import numpy as np

from stele.domain.balancer.colocation import kept_apart, listed_dcs
from stele.domain.balancer.load import Conditions, known_stats
from stele.domain.balancer.stuck import Stuck
from stele.domain.base import Rejection
from stele.domain.context import unknown_table
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table, TableOptions, TabletGroup
from stele.domain.model.settings import TARGET_RATE, TARGET_SIZE
from stele.domain.model.tablet_stats import READS, WRITES, TabletStats
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.planner.planned import TableSizes, TabletSize
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.tablets.maps import combined, holders, row_of
from stele.domain.tablets.sizing import (
    ByRate,
    Goals,
    Hottest,
    Present,
    ReplicaScope,
    TabletCount,
    by_rate,
    fewest,
    hottest_of,
    most,
    rounded,
    scopes_of,
)

MOST_AT_ONCE: Final = 10
"""Largest number of resizes requested in one round (Scylla: max_new_resize_requests)."""
MOST_WAITING: Final = 512
"""Largest number of unfinished resizes over all tables. Each one costs the coordinator a look."""


class Resize(msgspec.Struct, frozen=True):
    """A table, its next number of tablets, and the reason."""

    table: str
    tablets: int
    why: str


class Sizing(NamedTuple):
    """The resizes to request now, and the resize requests to cancel."""

    resizes: tuple[Resize, ...] = ()
    revoked: tuple[Stuck, ...] = ()


NO_RATES: Final = ByRate(TabletCount(0, ""), TabletCount(0, ""))


class Needs(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The present tablets of a map, and the bounds of their number.

    The map is that of ``together`` tables. Maps with the same inputs share one object, because few
    of thousands of maps differ.
    """

    count: int
    options: TableOptions
    fewest: TabletCount
    most: TabletCount
    scopes: Mapping[str, ReplicaScope]
    by_rate: ByRate = NO_RATES
    together: int = 1

    def replicas(self, count: int, scope: ReplicaScope) -> int:
        """Return the replicas in a scope if each of its tables has ``count`` tablets."""
        return count * scope.replication_factor * self.together


class TableLoad(NamedTuple):
    """The bytes of one copy of a table's data and its hottest tablet, as far as they are known."""

    size_bytes: float | None = None
    hottest: Hottest | None = None


UNKNOWN: Final = TableLoad()


def sizing(
    image: Image,
    loads: Mapping[str, TableLoad],
    down: Set[str] = frozenset(),
    off: Set[str] = frozenset(),
    full: Set[str] = frozenset(),
) -> Sizing:
    """Return the resizes to request and those to revoke. ``loads`` are keyed by data id.

    A table with tablets on nodes that are ``down`` is not merged. Neither is a table whose siblings
    cannot be brought together because disks are ``full``. Tables that are ``off``, by full name,
    keep their number.
    """
    groups, asked = image.schema.tablet_groups, _asked(image)
    resizes, revoked = list[Resize](), list[Stuck]()
    room = MOST_WAITING - sum(group.owner.table_id in asked for group in groups)
    for group, count, aim in _next_of_all(image, loads, asked, down, full):
        request, name = asked.get(group.owner.table_id), group.data.name
        if name in off:
            continue
        if request is None:
            if aim.count != count and len(resizes) < min(room, MOST_AT_ONCE):
                resizes.append(Resize(name, aim.count, aim.reason))
        elif may_be_revoked(request) and aim.count != request.tablet_count:
            revoked.append(Stuck(request.request_id, f"no longer necessary: {aim.reason}"))
    return Sizing(tuple(resizes), tuple(revoked))


def next_tablet_count(
    image: Image,
    loads: Mapping[str, TableLoad],
    down: Set[str],
    data_id: str,
    full: Set[str] = frozenset(),
) -> tuple[int, str]:
    """Return the next number of tablets of a table that is not being dropped, and the reason."""
    found = _next_of_all(image, loads, _asked(image), down, full)
    return next((aim.count, aim.reason) for group, _, aim in found if group.data.data_id == data_id)


def _asked(image: Image) -> dict[str, Request]:
    """Return the unfinished resizes by the id of their table."""
    return {r.table_id: r for r in image.requests.unfinished_by_id.values() if r.resizes}


def _next_of_all(
    image: Image,
    loads: Mapping[str, TableLoad],
    asked: Mapping[str, Request],
    down: Set[str],
    full: Set[str],
) -> Iterator[tuple[TabletGroup, int, TabletCount]]:
    """Yield the groups of tables with their present and their next number of tablets."""
    found = needs_of(image, loads, asked)
    next_ = next_counts(found, Goals.of(image.features.settings).per_shard)
    for group, needs, aim in zip(image.schema.tablet_groups, found, next_, strict=True):
        # Computed only for merges, because it examines each pair of the table's tablets.
        apart = _why_apart(image, group.owner, down, full) if aim.count < needs.count else ""
        yield group, needs.count, TabletCount(needs.count, apart) if apart else aim


def next_counts(maps: Sequence[Needs], per_shard: int) -> list[TabletCount]:
    """Return the next number of tablets of each map: the present number, twice as many, or half.

    A shard has at most ``per_shard`` replicas of all tables, except for rounding. Above that, each
    table gets the same fraction of what it needs or has. The number up to which a table is split
    depends on no present number. A table is never merged below that number, so resizes come to an
    end.

    The number wanted by rates does depend on present numbers, so it may use only the room that is
    left. A table is split by rate only if all tables then stay within the limit of the shards. It
    keeps these tablets until the tables exceed twice that limit.
    """
    # The lower bounds and their factor use no present number. With one, tables were split and
    # merged in turn for ever in 184 of 12,000 random settings
    # (docs/decisions/020-a-resize-is-a-request.md).
    numbers = Counter(maps)
    least = _factors(numbers, lambda each: each.fewest, per_shard)
    now = _factors(numbers, lambda each: each.most, per_shard)
    bounds = {
        each: (
            rounded(_part(each.fewest, _of(each, least)), each.options),
            rounded(_part(each.most, _of(each, now)), each.options),
        )
        for each in numbers
    }
    # Rates are no part of the factors. With them, 34 of 6,000 random settings split a table that
    # had just been merged for another one (docs/decisions/022-rates-count-as-they-were.md).
    room = _Room(numbers, bounds, per_shard)
    kept = {each: _without_rate(each, bound, room) for each, bound in bounds.items()}
    hot = {
        each: TabletCount(2 * each.count, each.by_rate.split.reason)
        for each, (low, _) in bounds.items()
        if low.count <= each.count < each.by_rate.split.count
    }
    return [hot[each] if each in hot and room.takes_split(each) else kept[each] for each in maps]


def _without_rate(
    each: Needs, bounds: tuple[TabletCount, TabletCount], room: "_Room"
) -> TabletCount:
    """Return the next number of tablets of a map that is not split by rate."""
    low, high = bounds
    # One decision doubles at most: the sizes after a split show whether another one is needed.
    if each.count < low.count:
        return TabletCount(2 * each.count, low.reason)
    rate, why = each.by_rate, high.reason
    if rate.too_hot:
        why = rate.split.reason
    if each.count < rate.split.count:
        why = f"{why}; but all tables together would have too many replicas for each shard"
    # The gap between one limit for splits and two for merges prevents that resizes alternate.
    keep = () if room.is_exceeded(each) else (rate.keep,)
    highest = max(low, high, *keep, key=lambda sized: sized.count)
    if each.count > highest.count:
        missing = f"; {rate.missing}" if rate.missing else ""
        return TabletCount(each.count // 2, f"{highest.reason}{missing}")
    return TabletCount(each.count, why)


class _Room:
    """The replicas of all tables by dc after all resizes by size, and the limit of its shards."""

    def __init__(
        self,
        numbers: Mapping[Needs, int],
        bounds: Mapping[Needs, tuple[TabletCount, TabletCount]],
        per_shard: int,
    ) -> None:
        self._most, self._end, self._now = dict[str, int](), Counter[str](), Counter[str]()
        for each, number in numbers.items():
            low, high = bounds[each]
            highest = max(low.count, high.count, each.by_rate.keep.count)
            end = min(max(each.count, low.count), highest)
            for dc, scope in each.scopes.items():
                self._most[dc] = per_shard * scope.shards
                self._end[dc] += number * each.replicas(end, scope)
                self._now[dc] += number * each.replicas(max(each.count, end), scope)

    def takes_split(self, each: Needs) -> bool:
        """Reserve the room for a split of the map and return True, or return False without room."""
        more = {dc: each.replicas(each.count, scope) for dc, scope in each.scopes.items()}
        if any(self._now[dc] + count > self._most[dc] for dc, count in more.items()):
            return False
        self._now.update(more)
        return True

    def is_exceeded(self, each: Needs) -> bool:
        """Return True if some dc exceeds twice its limit.

        Splits by rate stay below one limit, so they cannot cause this.
        """
        return any(self._end[dc] > 2 * self._most[dc] for dc in each.scopes)


def _part(sized: TabletCount, factor: float) -> TabletCount:
    if factor >= 1.0:
        return sized
    text = f"{sized.reason}; but all tables together have too many replicas for each shard"
    return TabletCount(math.ceil(sized.count * factor), text)


def _of(each: Needs, factors: Mapping[str, float]) -> float:
    return min((factors[dc] for dc in each.scopes), default=1.0)


def _factors(
    numbers: Mapping[Needs, int], wanted_of: Callable[[Needs], TabletCount], per_shard: int
) -> dict[str, float]:
    """Return by dc the fraction of these counts that its shards may have, at most 1."""
    replicas, shards = dict[str, int](), dict[str, int]()
    for each, number in numbers.items():
        count = wanted_of(each).count
        for dc, scope in each.scopes.items():
            replicas[dc] = replicas.get(dc, 0) + number * each.replicas(count, scope)
            shards[dc] = scope.shards
    return {
        dc: min(1.0, per_shard * shards[dc] / wanted) if wanted else 1.0
        for dc, wanted in replicas.items()
    }


def loaded(stats: Mapping[str, TabletStats]) -> dict[str, TableLoad]:
    """Return, by data id, the size and the hottest tablet of each table with any known value."""
    if not stats:
        return {}
    columns = [each.columns for each in stats.values()]
    known = ~np.isnan(np.concatenate(columns, axis=1)).all(axis=0)
    ends = np.cumsum([each.shape[1] for each in columns])
    any_known = np.logical_or.reduceat(known, [0, *ends[:-1]])
    return {
        name: TableLoad(each.size_bytes(), hottest_of(each))
        for name, each in compress(stats.items(), any_known.tolist())
    }


def needs_of(
    image: Image, loads: Mapping[str, TableLoad], asked: Mapping[str, Request]
) -> list[Needs]:
    """Return the needs of each group of tables, in the order of ``tablet_groups``.

    ``asked`` are the unfinished resizes by the id of their table.
    """
    schema, goals = image.schema, Goals.of(image.features.settings)
    scopes = {id_: scopes_of(image, keyspace, {}) for id_, keyspace in schema.by_id.items()}
    found, known = list[Needs](), dict[Hashable, Needs]()
    for table, data, tables in schema.tablet_groups:
        request, load = asked.get(table.table_id), loads.get(data.data_id, UNKNOWN)
        together, options = len(tables), combined([each.options for each in tables])
        present = Present(
            len(image.ring.placements[table.placement]),
            load.size_bytes,
            0 if request is None else request.tablet_count,
            load.hottest,
        )
        key = table.keyspace_id, options, present, together
        if key not in known:
            initial = schema.by_id[table.keyspace_id].initial_tablets
            about = (options, initial, scopes[table.keyspace_id], present, goals)
            rates = by_rate(options, present, goals)
            known[key] = Needs(
                count=present.count,
                options=options,
                fewest=_of_all(fewest(*about), together),
                most=_of_all(most(*about), together),
                scopes=scopes[table.keyspace_id],
                by_rate=rates._replace(
                    split=_of_all(rates.split, together), keep=_of_all(rates.keep, together)
                ),
                together=together,
            )
        found.append(known[key])
    return found


def _of_all(sized: TabletCount, tables: int) -> TabletCount:
    """Add to the reason that it covers several co-located tables, if it does."""
    if tables == 1:
        return sized
    return TabletCount(sized.count, f"{sized.reason} ({tables} tables together)")


def _why_apart(image: Image, table: Table, down: Set[str], full: Set[str]) -> str:
    """Return the reason for which siblings cannot be brought together, or an empty text.

    Tablets of a node that is away stay there, and their siblings may be elsewhere. A node with a
    full disk receives no tablet and must be relieved first. Tablets of a table that is being merged
    do not move for that.
    """
    placement = image.ring.placements[table.placement]
    away = image.membership.excluded() | down
    holding = sorted(away & holders(placement)) if away else []
    if holding:
        return f"sibling tablets cannot move to the same nodes while {', '.join(holding)} is away"
    blocking = (
        kept_apart(image.membership.nodes, placement, listed_dcs(image, table), full)
        if full
        else ()
    )
    if blocking:
        named = ", ".join(sorted(blocking))
        return f"sibling tablets cannot move to the same nodes while no disk of {named} has room"
    return ""


def may_be_revoked(asked: Request) -> bool:
    """Return True for a pending request of the balancer. Requests of other actors stay."""
    return asked.actor == BALANCER and asked.status is RequestStatus.PENDING


# The largest or the hottest tablets of a table, by the loads that nodes report.


def largest(
    image: Image, conditions: Conditions, name: str, limit: int, *, hottest: bool = False
) -> TableSizes | Rejection:
    """Return at most ``limit`` tablets of a table; those of unknown size, or rate, are left out.

    The wanted number of tablets covers all tables that share the map.
    """
    table, owner = image.schema.table_named(name), image.schema.standing_map_owner(name)
    stats = known_stats(image, conditions.loads)
    if table is None or owner is None or owner.data_id not in stats:
        return unknown_table(name)
    placement = image.ring.placements[table.placement]
    of = conditions.loads.stats(table.data_id, len(placement))
    order = of.rates if hottest else of.sizes
    known, counted = (int((~np.isnan(each)).sum()) for each in (of.sizes, of.rates))
    first = np.argsort(-order, kind="stable")[: min(limit, counted if hottest else known)].tolist()
    wanted, why = next_tablet_count(
        image, loaded(stats), conditions.down, owner.data_id, conditions.loads.full()
    )
    settings = image.features.settings
    return TableSizes(
        table=name,
        tablets=len(placement),
        known=known,
        size_bytes=int(np.nansum(of.sizes)),
        target_bytes=TARGET_SIZE.of(settings),
        largest=tuple(_tablet(of, number, row_of(placement, number)) for number in first),
        counted=counted,
        rate=round(float(np.nansum(of.rates))),
        target_rate=TARGET_RATE.of(settings),
        wanted=wanted,
        why=why,
    )


def _tablet(stats: TabletStats, number: int, row: RangeReplicas) -> TabletSize:
    reads, writes = (stats.columns[column, number] for column in (READS, WRITES))
    return TabletSize(
        tablet=number,
        size_bytes=int(np.nan_to_num(stats.sizes[number])),
        replicas=tuple(map(row.place, row.reads)),
        reads_per_s=None if np.isnan(reads) else round(float(reads)),
        writes_per_s=None if np.isnan(writes) else round(float(writes)),
    )
