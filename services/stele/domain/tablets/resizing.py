"""Which tables are to have another number of tablets, and which are not any more (seed 000, tablet resize)."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.ring.placement import Placement
from stele.domain.schema.facts import TableOptions
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.maps import holders, maps_of
from stele.domain.tablets.sizing import (
    Goals,
    Present,
    Scope,
    Sized,
    fewest,
    most,
    rounded,
    scopes_of,
)
from stele.domain.tablets.stuck import Stuck

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


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What sizing knows of a table. ``apart``: why its siblings cannot be brought together; empty: they can."""

    name: str
    count: int
    options: TableOptions
    fewest: Sized
    most: Sized
    scopes: Mapping[str, Scope]
    asked: Request | None = None
    apart: str = ""


def sizing(
    image: Image,
    sizes: Mapping[str, float],
    down: Set[str] = frozenset(),
    off: Set[str] = frozenset(),
) -> Sizing:
    """``sizes`` are the bytes of one copy of tables' data, by its id, as far as they are known; tables with
    tablets on nodes that are ``down`` are not merged, and those that are ``off``, by name, keep their number.
    """
    found = tables_of(image, sizes, down)
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


def aims(tables: Sequence[Table], per_shard: int) -> list[Sized]:
    """What each table is to have next: as many as it has, twice as many, or half.

    Shards have so many of all tables, at most, but for what rounding adds: of what all need, or have, each
    table gets the same part. What a table is split up to does not depend on how many there are of any, and it
    is never merged below that; so there is an end.
    """
    least = _factors(tables, [each.fewest for each in tables], per_shard)
    now = _factors(tables, [each.most for each in tables], per_shard)
    return [_aim(each, _of(each, least), _of(each, now)) for each in tables]


def _aim(each: Table, least: float, now: float) -> Sized:
    fewest, most = (_part(each.fewest, least), _part(each.most, now))
    fewest, most = rounded(fewest, each.options), rounded(most, each.options)
    if each.count < fewest.count:
        return Sized(2 * each.count, fewest.reason)
    if each.count > max(fewest.count, most.count):
        if each.apart:
            return Sized(each.count, each.apart)
        return Sized(each.count // 2, max(fewest, most, key=lambda sized: sized.count).reason)
    return Sized(each.count, most.reason)


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
            replicas[dc] = replicas.get(dc, 0) + sized.count * scope.replication_factor
            shards[dc] = scope.shards
    return {
        dc: min(1.0, per_shard * shards[dc] / wanted) if wanted else 1.0
        for dc, wanted in replicas.items()
    }


def sizes_of(image: Image, loads: LoadTable) -> dict[str, float]:
    """Bytes of one copy of tables' data, by its id, of those whose tablets are all known."""
    counts = {image.schema.data_of(t).data_id: len(placement) for t, placement in maps_of(image)}
    found = {data_id: loads.table_bytes(data_id, count) for data_id, count in counts.items()}
    return {data_id: size for data_id, size in found.items() if size is not None}


def tables_of(image: Image, sizes: Mapping[str, float], down: Set[str]) -> list[Table]:
    """All that stay; see ``sizing``."""
    schema, goals = image.schema, _goals(image)
    asked = {r.table_id: r for r in image.requests.open.values() if r.resizes}
    found = list[Table]()
    for table, placement in maps_of(image):
        data = schema.data_of(table)
        if data.dropped_version:
            continue
        keyspace, request = schema.by_id[table.keyspace_id], asked.get(table.table_id)
        present = Present(
            count=len(placement),
            size_bytes=sizes.get(data.data_id),
            resizing_to=0 if request is None else request.tablet_count,
        )
        scopes = scopes_of(image, keyspace, {})
        about = (table.options, keyspace.initial_tablets, scopes, present, goals)
        found.append(
            Table(
                name=data.name,
                count=len(placement),
                options=table.options,
                fewest=fewest(*about),
                most=most(*about),
                scopes=scopes,
                asked=request,
                apart=_why_apart(image, placement, down),
            )
        )
    return found


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
