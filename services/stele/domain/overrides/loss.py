"""What an override gives up: data that is dropped, and ranges whose new readers may lack acknowledged rows."""

from collections.abc import Iterator

from stele.domain.features.known import KNOWN
from stele.domain.image import Image
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas, range_of
from stele.domain.ring.spans import text_of


def losses(before: Image, after: Image) -> list[str]:
    """Each in words; empty when every acknowledged row is still met by the quorums that read it.

    A range is safe when it is read from the same shards of the same nodes as before. Any other set of replicas
    may have a quorum that lacks a row: nothing was streamed for it, and who left the range may have deleted it.
    """
    found = list[str]()
    now = {data.data_id: data for data in after.schema.all_data()}
    for data in sorted(before.schema.all_data(), key=lambda data: data.name):
        if data.dropped_version:
            continue
        kept = now.get(data.data_id)
        if kept is None:
            found.append(f"{data.name} is dropped with its rows")
            continue
        old, new = before.ring.placements[data.placement], after.ring.placements[kept.placement]
        if old is new:
            continue
        found += (f"{data.name}, range {each}" for each in _moved(old, new))
    return [*found, *_unsafe_settings(before, after)]


def _unsafe_settings(before: Image, after: Image) -> Iterator[str]:
    """As `SetSetting` takes them by force only."""
    was, now = before.features.settings, after.features.settings
    for name in sorted(now):
        setting = KNOWN.get(name)
        if setting is not None and setting.is_unsafe(now[name]) and now[name] != was.get(name):
            yield f"with setting {name} at {now[name]} they are from now on"


def _moved(old: Placement, new: Placement) -> Iterator[str]:
    for row in new.rows:
        places = _readers(row)
        had = next(
            (each for each in old.overlapping(range_of(row)) if _readers(each) != places), None
        )
        if had is not None:
            yield (
                f"{text_of(range_of(row))} is read from {_names(row)}, and was from {_names(had)}"
            )


def _readers(row: RangeReplicas) -> set[tuple[str, int]]:
    return {(node, row.shard_of(node)) for node in row.reads}


def _names(row: RangeReplicas) -> str:
    return ", ".join(sorted(map(row.place, row.reads))) or "nobody"
