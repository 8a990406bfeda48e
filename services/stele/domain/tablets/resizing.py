"""Which tables are to have another number of tablets, and which are not any more (seed 000, tablet resize)."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from stele.domain.image import Image
from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import Table
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.maps import holders, maps_of
from stele.domain.tablets.sizing import (
    Goals,
    Present,
    Scope,
    Sized,
    rounded,
    scopes_of,
    wanted_count,
)
from stele.domain.tablets.stuck import Stuck
from stele.domain.topology.operations.tablet_migration import BALANCER

MOST_AT_ONCE: Final = 10
"""Tables that are split or merged at one time (Scylla: max_new_resize_requests)."""


class Resize(msgspec.Struct, frozen=True):
    """A table, how many tablets it is to have, and why."""

    table: str
    tablets: int
    why: str


class Sizing(NamedTuple):
    """What to ask for now, and what to cancel."""

    resizes: tuple[Resize, ...] = ()
    revoked: tuple[Stuck, ...] = ()


class _Sized(msgspec.Struct, frozen=True):
    table: Table
    count: int
    wanted: Sized
    scopes: dict[str, Scope]
    asked: Request | None
    merges: bool
    """Whether siblings can be brought together: nobody who has any of its tablets is dead for good."""


def sizing(image: Image, sizes: Mapping[str, float]) -> Sizing:
    """``sizes`` are the bytes of one copy of tables' data, by its id, of those of which they are known."""
    found = _wanted(image, sizes)
    factors = _factors(found, Goals.of(image.features.settings).per_shard)
    resizes, revoked = list[Resize](), list[Stuck]()
    room = MOST_AT_ONCE - sum(each.asked is not None for each in found)
    for each in found:
        aim = _aim(each, factors)
        asked = each.asked
        if asked is None:
            if aim.count != each.count and len(resizes) < room:
                name = image.schema.full_name(each.table)
                resizes.append(Resize(name, aim.count, aim.reason))
        elif _may_be_revoked(asked) and not _still_wanted(
            each.count, asked.tablet_count, aim.count
        ):
            revoked.append(Stuck(asked.request_id, f"not wanted any more: {aim.reason}"))
    return Sizing(tuple(resizes), tuple(revoked))


def sizes_of(image: Image, loads: LoadTable) -> dict[str, float]:
    """Bytes of one copy of tables' data, by its id, of those whose tablets are all known."""
    counts = {image.schema.data_of(t).data_id: len(placement) for t, placement in maps_of(image)}
    found = {data_id: loads.table_bytes(data_id, count) for data_id, count in counts.items()}
    return {data_id: size for data_id, size in found.items() if size is not None}


def _wanted(image: Image, sizes: Mapping[str, float]) -> list[_Sized]:
    """Of all tables that stay; what each would have were it alone."""
    schema, goals = image.schema, Goals.of(image.features.settings)
    asked = {r.table_id: r for r in image.requests.open.values() if r.resizes}
    excluded = image.membership.excluded()
    found = list[_Sized]()
    for table, placement in maps_of(image):
        data = schema.data_of(table)
        if data.dropped_version:
            continue
        keyspace = schema.by_id[table.keyspace_id]
        request = asked.get(table.table_id)
        present = Present(
            count=len(placement),
            size_bytes=sizes.get(data.data_id),
            resizing_to=0 if request is None else request.tablet_count,
        )
        scopes = scopes_of(image, keyspace, {})
        wanted = wanted_count(table.options, keyspace.initial_tablets, scopes, present, goals)
        merges = not excluded or excluded.isdisjoint(holders(placement))
        found.append(_Sized(table, len(placement), wanted, scopes, request, merges))
    return found


def _factors(found: list[_Sized], goal: int) -> dict[str, float]:
    """By dc, how many of the replicas that are wanted its shards are to have."""
    replicas, shards = dict[str, int](), dict[str, int]()
    for each in found:
        for dc, scope in each.scopes.items():
            replicas[dc] = replicas.get(dc, 0) + each.wanted.count * scope.replication_factor
            shards[dc] = scope.shards
    return {dc: min(1.0, goal * shards[dc] / wanted) for dc, wanted in replicas.items() if wanted}


def _aim(each: _Sized, factors: Mapping[str, float]) -> Sized:
    """What the table is to have next: as many as it has, unless it is to have more, or half of them or less.

    Each is split into two, or two become one, however far it is to go: the size may be another by then.
    """
    factor = min((factors.get(dc, 1.0) for dc in each.scopes), default=1.0)
    wanted = each.wanted
    if factor < 1.0:
        of = f"{wanted.reason}; but all tables together have too many replicas for each shard"
        wanted = Sized(math.ceil(wanted.count * factor), of)
    aim = rounded(wanted, each.table.options)
    if aim.count > each.count:
        return Sized(2 * each.count, aim.reason)
    half = each.count // 2
    if half >= aim.count and half and each.merges:
        return Sized(half, aim.reason)
    return Sized(each.count, aim.reason)


def _may_be_revoked(asked: Request) -> bool:
    """What somebody else asked for is theirs."""
    return asked.actor == BALANCER and asked.status is RequestStatus.PENDING


def _still_wanted(count: int, asked: int, aim: int) -> bool:
    return count < asked <= aim or aim <= asked < count
