"""The number of tablets of a table (Scylla's rules, ``tablet_allocator``; docs/concepts/tablets.md).

The number is the largest one that the keyspace and the table ask for. If neither asks, it gives
each shard ``scale`` replicas of the table. A new table gets that many only if no shard then exceeds
``per_shard`` replicas of all tables. Later all tables are limited by the same fraction
(``resizing``). The number is rounded up to a power of two, unless the table may not have so many.

The size of a table bounds its number of tablets: the mean of a tablet is from half the target to
twice the target. The lower bound does not depend on the present number, so no table is split,
merged and split again. The rate of its hottest tablet is a bound too (``hot``), where shards have
room.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

import msgspec
import numpy as np

from stele.domain.image import Image
from stele.domain.model import settings as limits
from stele.domain.model.schema import Keyspace, TableOptions
from stele.domain.model.tablet_stats import Reals, TabletStats
from stele.domain.tablets.maps import MAX_TABLETS

# The number of tablets by the rate of the hottest one (CockroachDB's load-based splitting).
#
# The rates in smaller maps follow from the present rates. Those in a map of twice as many tablets
# follow from the halves that nodes count. A split helps only if the hottest tablet becomes clearly
# cooler: a single hot key cannot be split.


HELPS: Final = 0.75
"""Largest fraction of the hottest tablet's rate after a useful split; a half is ideal."""
STILL_HELPS: Final = 0.9
"""A split is kept while the fraction stays below this, so that shares that fluctuate do not undo
it.
"""
COOL: Final = 0.5
"""Fraction of the target. A merge may begin if its tablets serve no more than that."""


class Hottest(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a table's hottest tablet, at present and at other numbers of tablets.

    ``by_count`` holds the largest rate, in operations per second, in maps of 1, 2, 4 ... tablets up
    to the present one. ``tablet`` is the number of the hottest one now. ``split`` is the largest
    rate after a split, None until nodes have counted it. ``uncounted`` is the number of tablets
    whose rate is not known in full.
    """

    by_count: tuple[float, ...]
    tablet: int
    split: float | None
    uncounted: int = 0

    @property
    def now(self) -> float:
        return self.by_count[-1]

    def known(self) -> tuple[float, ...]:
        """Return the largest rates by powers of two, up to the largest count with known rates."""
        return self.by_count if self.split is None else (*self.by_count, self.split)


def hottest_of(stats: TabletStats) -> Hottest | None:
    """Return None where no rate is known. Tablets of unknown rates count as idle."""
    rates, lower = stats.rates, stats.lower
    if np.isnan(rates).all():
        return None
    uncounted = max(stats.uncounted, int(np.isnan(rates).sum()))
    rates = np.nan_to_num(rates)
    tablet = int(rates.argmax())
    by_count = [level := rates]
    while len(level) > 1:
        # A merged tablet would serve the sum of both rates.
        by_count.append(level := level[::2] + level[1::2])
    return Hottest(
        by_count=tuple(float(each.max()) for each in reversed(by_count)),
        tablet=tablet,
        split=_split(rates, lower),
        uncounted=uncounted,
    )


def _split(rates: Reals, lower: Reals) -> float | None:
    """Return the rate of the hottest half, None if a half that was not counted may exceed it."""
    halves = np.maximum(lower, rates - lower)
    best = float(np.nanmax(halves, initial=0.0))
    # An uncounted half may be as hot as its whole tablet.
    uncounted = float(rates[np.isnan(halves)].max(initial=0.0))
    return None if uncounted > best else best


def enough(by_count: Sequence[float], most: float, helps: float) -> int:
    """Return the fewest tablets that each serve at most ``most``, or beyond which no split helps.

    No split helps if the largest map's hottest tablet still serves more than ``helps`` of their
    hottest one's rate.
    """
    for power, rate in enumerate(by_count):
        if rate <= most or by_count[-1] > helps * rate:
            return 1 << power
    raise AssertionError("the last is always enough: no part of it is more than all of it")


def words(hot: Hottest, target: int) -> str:
    """Describe the rate of the hottest tablet, and why a tablet above the target is not split."""
    found = f"its hottest tablet, {hot.tablet}, serves {hot.now:,.0f} operations a second"
    found += f"; the target is {target:,}"
    if hot.now <= target:
        return found
    if hot.split is None:
        return f"{found}; there are no samples yet of whether a split would help"
    if hot.split > HELPS * hot.now:
        return f"{found}; a split does not help, half of a tablet would serve {hot.split:,.0f}"
    return found


_GIB: Final = 2**30
_COUNT: Final = attrgetter("count")


class Goals(msgspec.Struct, frozen=True):
    """The targets from the cluster's settings; see ``model.settings``."""

    target_bytes: int = limits.TARGET_SIZE.default
    target_rate: int = limits.TARGET_RATE.default
    """Operations per second of a tablet; 0 means no limit."""
    per_shard: int = limits.PER_SHARD_GOAL.default
    scale: int = limits.SCALE_FACTOR.default

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        return cls(
            limits.TARGET_SIZE.of(settings),
            limits.TARGET_RATE.of(settings),
            limits.PER_SHARD_GOAL.of(settings),
            limits.SCALE_FACTOR.of(settings),
        )


class ReplicaScope(msgspec.Struct, frozen=True):
    """A dc with replicas, or a listed rack of one.

    It holds the shards of its nodes, the replicas of each tablet, and the replicas present now. A
    scope with ``asks`` false only limits the number of replicas for its shards.
    """

    shards: int
    replication_factor: int
    held: int = 0
    asks: bool = True


class TabletCount(msgspec.Struct, frozen=True):
    """A number of tablets, and the reason for it."""

    count: int
    reason: str


class Present(msgspec.Struct, frozen=True):
    """A table at present.

    It holds the number of tablets, the bytes of one copy and the hottest tablet, the last two only
    if known. ``resizing_to`` is the number after the resize under way, 0 without one.
    """

    count: int
    size_bytes: float | None = None
    resizing_to: int = 0
    hottest: Hottest | None = None


def scopes_of(image: Image, keyspace: Keyspace, held: Mapping[str, int]) -> dict[str, ReplicaScope]:
    """Return each dc of the keyspace and each listed rack, by name.

    Only nodes that take tablets count. ``held`` gives the replicas that each scope has now.
    """
    going = image.requests.going()
    holding = [n for n in image.membership.holding().values() if n.node_id not in going]
    shards = Counter[str]()
    for node in holding:
        for scope in (node.dc, in_rack(node.dc, node.rack)):
            shards[scope] += node.shards
    found = dict[str, ReplicaScope]()
    for dc, factor in keyspace.replication.items():
        racks = keyspace.racks.get(dc, ())
        # Listed racks ask for themselves. Their dc still limits the sum.
        found[dc] = ReplicaScope(shards[dc], factor, held.get(dc, 0), asks=not racks)
        for name in (in_rack(dc, rack) for rack in racks):
            found[name] = ReplicaScope(shards[name], 1, held.get(name, 0))
    return found


def in_rack(dc: str, rack: str) -> str:
    """Return the name of a rack as a scope, for people."""
    return f"rack {rack} of {dc}"


def first_count(
    options: TableOptions, initial: int, scopes: Mapping[str, ReplicaScope], goals: Goals
) -> TabletCount:
    """Return the number of tablets of a new table.

    ``initial`` is the keyspace's number, 0 if unset.
    """
    found = [*_asked_for(options, initial, scopes, goals)]
    if _asks_nothing(options, initial):
        found.append(_with_room(scopes, goals))
    return rounded(max(found, key=_COUNT), options)


def fewest(
    options: TableOptions,
    initial: int,
    scopes: Mapping[str, ReplicaScope],
    present: Present,
    goals: Goals,
) -> TabletCount:
    """Return the number below which an existing table is split, if its shards have room."""
    asked = _base(options, initial, scopes, goals)
    return _capped(max(asked, _fewest_by_size(present, goals), key=_COUNT), options)


def most(
    options: TableOptions,
    initial: int,
    scopes: Mapping[str, ReplicaScope],
    present: Present,
    goals: Goals,
) -> TabletCount:
    """Return the number above which an existing table is merged.

    It is not above the present number, unless more tablets are wanted.
    """
    asked = _base(options, initial, scopes, goals)
    return _capped(max(_most_by_size(present, goals), rounded(asked, options), key=_COUNT), options)


class ByRate(NamedTuple):
    """Bounds by the rate of the hottest tablet.

    A table is split up to ``split`` tablets if shards have room, and is not merged below ``keep``.
    ``missing`` names the unknown rates.
    """

    split: TabletCount
    keep: TabletCount
    too_hot: bool = False
    missing: str = ""


def by_rate(options: TableOptions, present: Present, goals: Goals) -> ByRate:
    """Return the bounds by rate of an existing table; see ``hot``."""
    split, keep = _fewest_by_rate(present, goals), _most_by_rate(present, goals)
    hot = present.hottest is not None and 0 < goals.target_rate < present.hottest.now
    missing = _missing_rates(present) if goals.target_rate else ""
    return ByRate(_capped(split, options), _capped(keep, options), hot, missing)


def _missing_rates(present: Present) -> str:
    hot = present.hottest
    if hot is None:
        return "no node reports rates of its tablets, so bytes alone count"
    if not hot.uncounted:
        return ""
    return f"the rates of {hot.uncounted} of its {present.count} tablets are unknown and count as 0"


def _base(
    options: TableOptions, initial: int, scopes: Mapping[str, ReplicaScope], goals: Goals
) -> TabletCount:
    found = [*_asked_for(options, initial, scopes, goals)]
    if _asks_nothing(options, initial):
        # An existing table is limited together with all others in ``resizing``, not here.
        found.append(_by_scale(scopes, goals))
    return max(found, key=_COUNT)


def rounded(wanted: TabletCount, options: TableOptions) -> TabletCount:
    """Return the next power of two, limited to what the table may have."""
    return _capped(TabletCount(_ceil_pow2(wanted.count), wanted.reason), options)


def _capped(wanted: TabletCount, options: TableOptions) -> TabletCount:
    # The limit is rounded down, because rounding up may not exceed it.
    limit = _floor_pow2(options.max_tablet_count or MAX_TABLETS)
    if wanted.count <= limit:
        return wanted
    if options.max_tablet_count:
        return TabletCount(limit, f"max_tablet_count is {options.max_tablet_count}")
    return TabletCount(limit, f"no table has more than {MAX_TABLETS} tablets")


def _asks_nothing(options: TableOptions, initial: int) -> bool:
    return not initial and not options.min_per_shard_tablet_count


def _asked_for(
    options: TableOptions, initial: int, scopes: Mapping[str, ReplicaScope], goals: Goals
) -> list[TabletCount]:
    per_shard = options.min_per_shard_tablet_count
    return [
        TabletCount(initial, f"the keyspace's initial_tablets is {initial}"),
        TabletCount(options.min_tablet_count, f"min_tablet_count is {options.min_tablet_count}"),
        TabletCount(
            _parts(options.expected_data_size_in_gb * _GIB, goals.target_bytes),
            f"expected_data_size_in_gb is {options.expected_data_size_in_gb}",
        ),
        *(_per_shard(dc, scope, per_shard) for dc, scope in _asking(scopes)),
    ]


def _fewest_by_size(present: Present, goals: Goals) -> TabletCount:
    """Return the fewest tablets with at most twice the target size each.

    A split that has begun continues down to the target.
    """
    if present.size_bytes is None:
        return TabletCount(0, "its size is unknown")
    count, size, target = present.count, present.size_bytes, goals.target_bytes
    # Otherwise a size that fluctuates around the bound would revoke the split and request it again.
    goes_on = present.resizing_to > count and size >= count * target
    fewest = 2 * count if goes_on else _parts(math.ceil(size), 2 * target)
    return TabletCount(max(1, fewest), _size_text(present, goals))


def _most_by_size(present: Present, goals: Goals) -> TabletCount:
    """Return the most tablets with at least half the target size each.

    A merge that has begun continues up to the target.
    """
    if present.size_bytes is None:
        return TabletCount(
            present.count, f"it has {present.count} tablets, and their size is unknown"
        )
    count, size, target = present.count, present.size_bytes, goals.target_bytes
    if 0 < present.resizing_to < count and size <= count * target:
        return TabletCount(present.resizing_to, _size_text(present, goals))
    if count * target <= 2 * size:
        return TabletCount(count, _size_text(present, goals))
    return TabletCount(_floor_pow2(max(1, int(2 * size // target))), _size_text(present, goals))


def _fewest_by_rate(present: Present, goals: Goals) -> TabletCount:
    """Return the fewest tablets that are all within the target rate, as far as splits help.

    A split that has begun continues until the hottest tablet is cool or the split proves useless.
    """
    hot, target = present.hottest, goals.target_rate
    if hot is None or not target:
        return TabletCount(0, "the rates of its tablets are unknown")
    # The looser factor applies here, so that a share that fluctuates does not end a split midway.
    helps = hot.split is None or hot.split <= STILL_HELPS * hot.now
    if present.resizing_to > present.count and hot.now >= COOL * target and helps:
        return TabletCount(2 * present.count, words(hot, target))
    return TabletCount(enough(hot.known(), target, HELPS), words(hot, target))


def _most_by_rate(present: Present, goals: Goals) -> TabletCount:
    """Return the fewest tablets that would all be cool.

    A merge that has begun continues up to the target.

    Unknown rates do not prevent a merge: a store that reports none would otherwise never merge its
    tables.
    """
    hot, target, count = present.hottest, goals.target_rate, present.count
    if not target:
        return TabletCount(0, "it may be merged whatever it serves")
    if hot is None:
        return TabletCount(0, "no rates are known")
    merges = 0 < present.resizing_to < count
    found = enough(hot.known(), target if merges else COOL * target, STILL_HELPS)
    return TabletCount(min(count, found), words(hot, target))


def _size_text(present: Present, goals: Goals) -> str:
    mean = (present.size_bytes or 0.0) / present.count
    tablets = f"its {present.count} tablets have" if present.count > 1 else "its tablet has"
    each = " each" if present.count > 1 else ""
    return f"{tablets} {mean:,.0f} bytes{each}; the target is {goals.target_bytes:,}"


def _per_shard(dc: str, scope: ReplicaScope, replicas: int) -> TabletCount:
    count = _parts(replicas * scope.shards, scope.replication_factor)
    return TabletCount(count, f"{replicas} replicas for each of {scope.shards} shards of {dc}")


def _asking(scopes: Mapping[str, ReplicaScope]) -> list[tuple[str, ReplicaScope]]:
    return [(name, scope) for name, scope in sorted(scopes.items()) if scope.asks]


def _by_scale(scopes: Mapping[str, ReplicaScope], goals: Goals) -> TabletCount:
    """Return the number of tablets that the scale asks for, the largest over the dcs."""
    return max((_per_shard(dc, scope, goals.scale) for dc, scope in _asking(scopes)), key=_COUNT)


def _with_room(scopes: Mapping[str, ReplicaScope], goals: Goals) -> TabletCount:
    """Return the number that the scale asks for, limited so that no dc has too many per shard."""
    wanted = _by_scale(scopes, goals)
    rooms = ((dc, _room(scope, goals)) for dc, scope in sorted(scopes.items()))
    dc, room = min(rooms, key=lambda pair: pair[1])
    if wanted.count <= room:
        return wanted
    return TabletCount(room, f"{goals.per_shard} replicas of all tables for each shard of {dc}")


def _room(scope: ReplicaScope, goals: Goals) -> int:
    """Return the tablets that fit before the shards have too many replicas.

    A table has at least one.
    """
    return max(1, (goals.per_shard * scope.shards - scope.held) // scope.replication_factor)


def _parts(whole: int, part: int) -> int:
    """Return ``whole / part``, rounded up."""
    return -(-whole // part)


def _ceil_pow2(number: int) -> int:
    return 1 << (max(1, number) - 1).bit_length()


def _floor_pow2(number: int) -> int:
    return 1 << (number.bit_length() - 1)
