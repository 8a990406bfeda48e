"""How many tablets a table is to have (Scylla's rules, ``tablet_allocator``; docs/tablets.md).

The largest of what the keyspace and the table ask for, and what its size asks for; where nobody asks for
anything, so many that each shard has ``SCALE_FACTOR`` replicas of the table. A new one gets so many only as
long as no shard has more than ``PER_SHARD_GOAL`` of all tables; later all are kept to that alike. Rounded up
to a power of two, unless that is more than the table may have.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from stele.domain.image import Image
from stele.domain.schema.facts import Keyspace, TableOptions
from stele.domain.tablets import limits
from stele.domain.tablets.maps import MAX_TABLETS

_GIB: Final = 2**30


class Goals(msgspec.Struct, frozen=True):
    """What the cluster's settings ask for; see ``limits``."""

    target_bytes: int = limits.TARGET_SIZE.default
    per_shard: int = limits.PER_SHARD_GOAL.default
    scale: int = limits.SCALE_FACTOR.default

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        return cls(
            limits.TARGET_SIZE.of(settings),
            limits.PER_SHARD_GOAL.of(settings),
            limits.SCALE_FACTOR.of(settings),
        )


class Scope(msgspec.Struct, frozen=True):
    """A dc that has replicas: shards of its nodes, replicas of each tablet, and replicas that are there now."""

    shards: int
    replication_factor: int
    held: int = 0


class Sized(msgspec.Struct, frozen=True):
    """A number of tablets, and what made it so."""

    count: int
    reason: str


class Present(msgspec.Struct, frozen=True):
    """A table as it is: its tablets, the bytes of one copy of it if they are known, and how many tablets it is
    about to have; 0: as many.
    """

    count: int
    size_bytes: float | None = None
    resizing_to: int = 0


def scopes_of(image: Image, keyspace: Keyspace, held: Mapping[str, int]) -> dict[str, Scope]:
    """Each dc of the keyspace with the nodes that have room there, and the replicas that these hold."""
    going = image.requests.going()
    shards = Counter(n.dc for n in image.membership.holding().values() if n.node_id not in going)
    return {
        dc: Scope(shards[dc], factor, held.get(dc, 0))
        for dc, factor in keyspace.replication.items()
    }


def first_count(
    options: TableOptions, initial: int, scopes: Mapping[str, Scope], goals: Goals
) -> Sized:
    """For a new table; ``initial`` is the keyspace's, 0 if it says nothing."""
    found = [*_asked_for(options, initial, scopes, goals)]
    if _asks_nothing(options, initial):
        found.append(_with_room(scopes, goals))
    return rounded(max(found, key=_count), options)


def wanted_count(
    options: TableOptions,
    initial: int,
    scopes: Mapping[str, Scope],
    present: Present,
    goals: Goals,
) -> Sized:
    """For a table that is there, neither rounded nor kept below what shards are to have of all tables."""
    found = [_by_size(present, goals), *_asked_for(options, initial, scopes, goals)]
    if _asks_nothing(options, initial):
        found.append(_by_scale(scopes, goals))
    return max(found, key=_count)


def rounded(wanted: Sized, options: TableOptions) -> Sized:
    """The next power of two that the table may have."""
    most = _floor_pow2(options.max_tablet_count or MAX_TABLETS)
    count = 1 << (max(1, wanted.count) - 1).bit_length()
    if count > most:
        return Sized(most, f"max_tablet_count is {options.max_tablet_count}")
    return Sized(count, wanted.reason)


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
        *(_per_shard(dc, scope, per_shard) for dc, scope in sorted(scopes.items())),
    ]


def _by_size(present: Present, goals: Goals) -> Sized:
    """Split above twice the target, merge below half; what has begun goes on until the target is met."""
    count, size = present.count, present.size_bytes
    if size is None:
        return Sized(count, f"it has {count} tablets, and nobody knows their size")
    mean, target = size / count, goals.target_bytes
    splits = count < present.resizing_to
    merges = 0 < present.resizing_to < count
    text = f"its {count} tablets have {mean:,.0f} bytes each, and are to have {target:,}"
    if mean > 2 * target or (splits and mean >= target):
        return Sized(max(2 * count, _parts(round(size), target)), text)
    if mean < target / 2 or (merges and mean <= target):
        return Sized(_parts(count, 2), text)
    return Sized(count, text)


def _per_shard(dc: str, scope: Scope, replicas: int) -> Sized:
    count = _parts(replicas * scope.shards, scope.replication_factor)
    return Sized(count, f"{replicas} replicas for each of {scope.shards} shards of {dc}")


def _by_scale(scopes: Mapping[str, Scope], goals: Goals) -> Sized:
    """As many as its scale asks for in any dc."""
    return max(
        (_per_shard(dc, scope, goals.scale) for dc, scope in sorted(scopes.items())), key=_count
    )


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


def _floor_pow2(number: int) -> int:
    return 1 << (number.bit_length() - 1)
