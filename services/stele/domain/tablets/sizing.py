"""How many tablets a new table gets (Scylla's rules, ``tablet_allocator``; docs/tablets.md).

The largest of what the keyspace and the table ask for; what nobody asked for, so many that each shard has
``SCALE_FACTOR`` replicas of the table, is kept below ``PER_SHARD_GOAL`` of all tables. Rounded up to a power of
two, unless that is more than the table may have.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from stele.domain.schema.facts import TableOptions
from stele.domain.tablets.maps import MAX_TABLETS

TARGET_SIZE_BYTES: Final = 5 * 2**30
SCALE_FACTOR: Final = 10
PER_SHARD_GOAL: Final = 100
_GIB: Final = 2**30


class Scope(msgspec.Struct, frozen=True):
    """A dc that has replicas: shards of its nodes, replicas of each tablet, and replicas that are there now."""

    shards: int
    replication_factor: int
    held: int


class Sized(msgspec.Struct, frozen=True):
    """A number of tablets, and what made it so."""

    count: int
    reason: str


def first_count(options: TableOptions, initial: int, scopes: Mapping[str, Scope]) -> Sized:
    """For a new table; ``initial`` is the keyspace's, 0 if it says nothing."""
    found = [*_asked_for(options, initial, scopes)]
    if not initial and not options.min_per_shard_tablet_count:
        found.append(_by_default(scopes))
    wanted = max(found, key=lambda sized: sized.count)
    most = _floor_pow2(options.max_tablet_count or MAX_TABLETS)
    count = 1 << (max(1, wanted.count) - 1).bit_length()
    if count > most:
        return Sized(most, f"max_tablet_count is {options.max_tablet_count}")
    return Sized(count, wanted.reason)


def _asked_for(options: TableOptions, initial: int, scopes: Mapping[str, Scope]) -> list[Sized]:
    per_shard = options.min_per_shard_tablet_count
    return [
        Sized(initial, f"the keyspace's initial_tablets is {initial}"),
        Sized(options.min_tablet_count, f"min_tablet_count is {options.min_tablet_count}"),
        Sized(
            _parts(options.expected_data_size_in_gb * _GIB, TARGET_SIZE_BYTES),
            f"expected_data_size_in_gb is {options.expected_data_size_in_gb}",
        ),
        *(_per_shard(dc, scope, per_shard) for dc, scope in sorted(scopes.items())),
    ]


def _per_shard(dc: str, scope: Scope, replicas: int) -> Sized:
    count = _parts(replicas * scope.shards, scope.replication_factor)
    return Sized(count, f"{replicas} replicas for each of {scope.shards} shards of {dc}")


def _by_default(scopes: Mapping[str, Scope]) -> Sized:
    """As many as its scale asks for in any dc, as long as the shards of no dc get too many."""
    wanted = max(
        (_per_shard(dc, scope, SCALE_FACTOR) for dc, scope in sorted(scopes.items())),
        key=lambda sized: sized.count,
    )
    dc, room = min(
        ((dc, _room(scope)) for dc, scope in sorted(scopes.items())), key=lambda pair: pair[1]
    )
    if wanted.count <= room:
        return wanted
    return Sized(room, f"{PER_SHARD_GOAL} replicas of all tables for each shard of {dc}")


def _room(scope: Scope) -> int:
    """Tablets that fit in before its shards have too many; a table has one in any case."""
    return max(1, (PER_SHARD_GOAL * scope.shards - scope.held) // scope.replication_factor)


def _parts(whole: int, part: int) -> int:
    """So many parts has the whole, rounded up."""
    return -(-whole // part)


def _floor_pow2(number: int) -> int:
    return 1 << (number.bit_length() - 1)
