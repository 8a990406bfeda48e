"""How many tablets a table is to have (Scylla's rules, ``tablet_allocator``; docs/tablets.md).

The largest of what the keyspace and the table ask for, and where nobody asks for anything, so many that each
shard has ``scale`` replicas of the table. A new one gets so many only as long as no shard has more than
``per_shard`` of all tables; later all are kept to that alike (``resizing``). Rounded up to a power of two,
unless that is more than the table may have.

Its size says how few and how many may be there: the mean of a tablet is from half the target to twice that.
What is too few does not depend on how many there are now, so that nothing is split, merged and split again.
So does what its hottest tablet serves (``hot``), where shards have room for that.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

import msgspec

from stele.domain.image import Image
from stele.domain.schema.facts import Keyspace, TableOptions
from stele.domain.tablets import limits
from stele.domain.tablets.hot import COOL, HELPS, STILL_HELPS, Hottest, enough, words
from stele.domain.tablets.ranges import MAX_TABLETS

_GIB: Final = 2**30


class Goals(msgspec.Struct, frozen=True):
    """What the cluster's settings ask for; see ``limits``."""

    target_bytes: int = limits.TARGET_SIZE.default
    target_rate: int = limits.TARGET_RATE.default
    """Operations a second; 0: whatever they serve."""
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


class Scope(msgspec.Struct, frozen=True):
    """A dc that has replicas, or a rack where these are listed: shards of its nodes, replicas of each tablet,
    and replicas that are there now. One that does not ask counts only for how many its shards may have.
    """

    shards: int
    replication_factor: int
    held: int = 0
    asks: bool = True


class Sized(msgspec.Struct, frozen=True):
    """A number of tablets, and what made it so."""

    count: int
    reason: str


class Present(msgspec.Struct, frozen=True):
    """A table as it is: its tablets, the bytes of one copy of it and what its hottest tablet serves if these
    are known, and how many tablets it is about to have; 0: as many.
    """

    count: int
    size_bytes: float | None = None
    resizing_to: int = 0
    hottest: Hottest | None = None


def scopes_of(image: Image, keyspace: Keyspace, held: Mapping[str, int]) -> dict[str, Scope]:
    """Each dc of the keyspace, and each rack where these are listed, with the nodes that have room there, and
    the replicas that these hold.
    """
    going = image.requests.going()
    holding = [n for n in image.membership.holding().values() if n.node_id not in going]
    shards = Counter[str]()
    for node in holding:
        for scope in (node.dc, in_rack(node.dc, node.rack)):
            shards[scope] += node.shards
    found = dict[str, Scope]()
    for dc, factor in keyspace.replication.items():
        racks = keyspace.racks.get(dc, ())
        found[dc] = Scope(shards[dc], factor, held.get(dc, 0), asks=not racks)
        for name in (in_rack(dc, rack) for rack in racks):
            found[name] = Scope(shards[name], 1, held.get(name, 0))
    return found


def in_rack(dc: str, rack: str) -> str:
    """The name of a rack as a scope, for people."""
    return f"rack {rack} of {dc}"


def first_count(
    options: TableOptions, initial: int, scopes: Mapping[str, Scope], goals: Goals
) -> Sized:
    """For a new table; ``initial`` is the keyspace's, 0 if it says nothing."""
    found = [*_asked_for(options, initial, scopes, goals)]
    if _asks_nothing(options, initial):
        found.append(_with_room(scopes, goals))
    return rounded(max(found, key=_count), options)


def fewest(
    options: TableOptions,
    initial: int,
    scopes: Mapping[str, Scope],
    present: Present,
    goals: Goals,
) -> Sized:
    """For a table that is there: with fewer it is split, unless shards would have too many of all tables."""
    asked = _base(options, initial, scopes, goals)
    return _capped(max(asked, _fewest_by_size(present, goals), key=_count), options)


def most(
    options: TableOptions,
    initial: int,
    scopes: Mapping[str, Scope],
    present: Present,
    goals: Goals,
) -> Sized:
    """For a table that is there: with more it is merged. Not above what there is, unless more are wanted."""
    asked = _base(options, initial, scopes, goals)
    return _capped(max(_most_by_size(present, goals), rounded(asked, options), key=_count), options)


class ByRate(NamedTuple):
    """``split`` is a number up to which a table is split by what its hottest tablet serves, if shards have room
    for it; ``keep`` one down to which it is not merged.
    """

    split: Sized
    keep: Sized
    too_hot: bool = False


def by_rate(options: TableOptions, present: Present, goals: Goals) -> ByRate:
    """For a table that is there; see ``hot``."""
    split, keep = _fewest_by_rate(present, goals), _most_by_rate(present, goals)
    hot = present.hottest is not None and 0 < goals.target_rate < present.hottest.now
    return ByRate(_capped(split, options), _capped(keep, options), hot)


def _base(options: TableOptions, initial: int, scopes: Mapping[str, Scope], goals: Goals) -> Sized:
    found = [*_asked_for(options, initial, scopes, goals)]
    if _asks_nothing(options, initial):
        found.append(_by_scale(scopes, goals))
    return max(found, key=_count)


def rounded(wanted: Sized, options: TableOptions) -> Sized:
    """The next power of two that the table may have."""
    return _capped(Sized(_ceil_pow2(wanted.count), wanted.reason), options)


def _capped(wanted: Sized, options: TableOptions) -> Sized:
    limit = _floor_pow2(options.max_tablet_count or MAX_TABLETS)
    if wanted.count <= limit:
        return wanted
    if options.max_tablet_count:
        return Sized(limit, f"max_tablet_count is {options.max_tablet_count}")
    return Sized(limit, f"no table has more than {MAX_TABLETS} tablets")


def _count(sized: Sized) -> int:
    return sized.count


def _asks_nothing(options: TableOptions, initial: int) -> bool:
    return not initial and not options.min_per_shard_tablet_count


def _asked_for(
    options: TableOptions, initial: int, scopes: Mapping[str, Scope], goals: Goals
) -> list[Sized]:
    per_shard = options.min_per_shard_tablet_count
    return [
        Sized(initial, f"the keyspace's initial_tablets is {initial}"),
        Sized(options.min_tablet_count, f"min_tablet_count is {options.min_tablet_count}"),
        Sized(
            _parts(options.expected_data_size_in_gb * _GIB, goals.target_bytes),
            f"expected_data_size_in_gb is {options.expected_data_size_in_gb}",
        ),
        *(_per_shard(dc, scope, per_shard) for dc, scope in _asking(scopes)),
    ]


def _fewest_by_size(present: Present, goals: Goals) -> Sized:
    """So that they have twice the target each, at most; a split that has begun goes on down to the target."""
    if present.size_bytes is None:
        return Sized(0, "nobody knows its size")
    count, size, target = present.count, present.size_bytes, goals.target_bytes
    goes_on = present.resizing_to > count and size >= count * target
    fewest = 2 * count if goes_on else _parts(math.ceil(size), 2 * target)
    return Sized(max(1, fewest), _told(present, goals))


def _most_by_size(present: Present, goals: Goals) -> Sized:
    """So that they have half the target each, at least; a merge that has begun goes on up to the target."""
    if present.size_bytes is None:
        return Sized(present.count, f"it has {present.count} tablets, and nobody knows their size")
    count, size, target = present.count, present.size_bytes, goals.target_bytes
    if 0 < present.resizing_to < count and size <= count * target:
        return Sized(present.resizing_to, _told(present, goals))
    if count * target <= 2 * size:
        return Sized(count, _told(present, goals))
    return Sized(_floor_pow2(max(1, int(2 * size // target))), _told(present, goals))


def _fewest_by_rate(present: Present, goals: Goals) -> Sized:
    """So that none serves more than the target, as far as splits help; a split that has begun goes on while the
    hottest is not cool, and it does not turn out to be of no help.
    """
    hot, target = present.hottest, goals.target_rate
    if hot is None or not target:
        return Sized(0, "nobody knows what its tablets serve")
    helps = hot.split is None or hot.split <= STILL_HELPS * hot.now
    if present.resizing_to > present.count and hot.now >= COOL * target and helps:
        return Sized(2 * present.count, words(hot, target))
    return Sized(enough(hot.known(), target, HELPS), words(hot, target))


def _most_by_rate(present: Present, goals: Goals) -> Sized:
    """So that those of half as many would be cool; a merge that has begun goes on up to the target."""
    hot, target, count = present.hottest, goals.target_rate, present.count
    if not target:
        return Sized(0, "it may be merged whatever it serves")
    if hot is None or not hot.complete:
        why = f"it has {count} tablets, and nobody has counted yet what all of them serve"
        return Sized(count, why)
    merges = 0 < present.resizing_to < count
    found = enough(hot.known(), target if merges else COOL * target, STILL_HELPS)
    return Sized(min(count, found), words(hot, target))


def _told(present: Present, goals: Goals) -> str:
    mean = (present.size_bytes or 0.0) / present.count
    tablets = f"its {present.count} tablets have" if present.count > 1 else "its tablet has"
    each = " each" if present.count > 1 else ""
    return f"{tablets} {mean:,.0f} bytes{each}; {goals.target_bytes:,} are the target"


def _per_shard(dc: str, scope: Scope, replicas: int) -> Sized:
    count = _parts(replicas * scope.shards, scope.replication_factor)
    return Sized(count, f"{replicas} replicas for each of {scope.shards} shards of {dc}")


def _asking(scopes: Mapping[str, Scope]) -> list[tuple[str, Scope]]:
    return [(name, scope) for name, scope in sorted(scopes.items()) if scope.asks]


def _by_scale(scopes: Mapping[str, Scope], goals: Goals) -> Sized:
    """As many as its scale asks for in any dc."""
    return max((_per_shard(dc, scope, goals.scale) for dc, scope in _asking(scopes)), key=_count)


def _with_room(scopes: Mapping[str, Scope], goals: Goals) -> Sized:
    """As many as its scale asks for, as long as the shards of no dc get too many."""
    wanted = _by_scale(scopes, goals)
    rooms = ((dc, _room(scope, goals)) for dc, scope in sorted(scopes.items()))
    dc, room = min(rooms, key=lambda pair: pair[1])
    if wanted.count <= room:
        return wanted
    return Sized(room, f"{goals.per_shard} replicas of all tables for each shard of {dc}")


def _room(scope: Scope, goals: Goals) -> int:
    """Tablets that fit in before its shards have too many; a table has one in any case."""
    return max(1, (goals.per_shard * scope.shards - scope.held) // scope.replication_factor)


def _parts(whole: int, part: int) -> int:
    """So many parts has the whole, rounded up."""
    return -(-whole // part)


def _ceil_pow2(number: int) -> int:
    return 1 << (max(1, number) - 1).bit_length()


def _floor_pow2(number: int) -> int:
    return 1 << (number.bit_length() - 1)
