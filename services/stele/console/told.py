"""What an epoch is for the pages: who, why and what, and which rows of the maps it changed. Pure functions."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from stele.console.maps import TOKENS
from stele.console.packed_map import states_of
from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.membership.facts import NodeChanged
from stele.domain.registry import FACTS
from stele.domain.requests.facts import Request
from stele.domain.ring.facts import PlacementChanged, PlacementDropped
from stele.domain.ring.numbers import PAD, lengths
from stele.domain.ring.placement import Placement
from stele.domain.ring.replicas import VERSION, WRITES, reads_of
from stele.domain.view import epoch_view
from stele.words.facts import EpochRow, fact_lines
from stele.words.names import HistoryNames

MOST_LINES: Final = 40
"""So many facts are told; a page asks for the whole epoch when somebody wants the rest."""
MOST_ROWS: Final = 2000
"""Changed rows of a map that an event carries; of more the map is read anew."""


Row = tuple[int, int, int, int, tuple[int, ...]]


class MapChange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a map that an epoch changed: (place, state, reads, version, numbers of nodes). ``anew``: read all
    of it again.
    """

    rows: tuple[Row, ...] = ()
    anew: bool = False


class EpochInWords(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch. ``lines`` are its facts in words, ``more`` says how many were left out; ``touched`` are the
    domains that changed.
    """

    epoch: int
    state_id: str
    at_ms: int
    command: str
    request_id: str
    actor: str
    reason: str
    origin: str
    refused: bool
    lines: tuple[str, ...]
    more: int
    live: bool = False
    """Whether it says what it changed of the maps."""
    touched: tuple[str, ...] = ()
    nodes: int = 0
    """How many nodes have a number: pages that know fewer read the map anew."""
    maps: dict[str, MapChange] = {}


def names_of(*images: Image) -> HistoryNames:
    """Names of what stands at these epochs, for the words of those that follow."""
    names = HistoryNames()
    for image in images:
        unfinished = (r for r in image.requests.requests.values() if _is_open(r))
        names.add(image.schema.by_id.values(), image.schema.tables.values(), unfinished)
    return names


def row_of(epoch: Epoch) -> EpochRow:
    """The epoch as the words take it: as it is in JSON."""
    return msgspec.json.decode(msgspec.json.encode(epoch_view(epoch)), type=EpochRow)


def told(row: EpochRow, names: HistoryNames) -> EpochInWords:
    """An epoch of the past: without what it changed."""
    lines = fact_lines(row, names)
    return EpochInWords(
        epoch=row.epoch,
        state_id=row.state_id,
        at_ms=row.at_ms,
        command=row.command,
        request_id=row.request_id,
        actor=row.actor,
        reason=row.reason,
        origin=row.origin,
        refused=any(fact.get("type") == "CommandRefused" for fact in row.facts),
        lines=tuple(lines[:MOST_LINES]),
        more=max(0, len(lines) - MOST_LINES),
    )


def told_live(before: Image, epoch: Epoch, after: Image) -> EpochInWords:
    """An epoch that has just come, with what it changed of the maps."""
    facts = [*Delta(before, epoch).facts()]
    return msgspec.structs.replace(
        told(row_of(epoch), names_of(before)),
        live=True,
        touched=tuple(sorted({FACTS[type(fact)][0] for fact in facts})),
        nodes=len(after.ring.nodes.names),
        maps=dict(_map_changes(before, facts, after)),
    )


def _map_changes(before: Image, facts: list[Any], after: Image) -> Iterator[tuple[str, MapChange]]:
    if any(isinstance(fact, NodeChanged) for fact in facts):
        yield TOKENS, MapChange(anew=True)
    names = {f.placement for f in facts if isinstance(f, PlacementChanged | PlacementDropped)}
    for name in sorted(names):
        old, new = before.ring.placements.get(name), after.ring.placements.get(name)
        added = [f.added for f in facts if isinstance(f, PlacementChanged) and f.placement == name]
        count = sum(map(len, added))
        if old is None or new is None or len(old) != len(new) or count > MOST_ROWS:
            yield name, MapChange(anew=True)
            continue
        starts = [int(start) for rows in added for start in rows.starts]
        yield name, MapChange(rows=tuple(_changed_rows(new, starts)))


def _changed_rows(placement: Placement, starts: list[int]) -> Iterator[Row]:
    """Those that begin there, or hold what is behind it, chunk by chunk."""
    table = placement.table
    inside: dict[int, set[int]] = {}
    for start in starts:
        at, place = table.find(start)
        inside.setdefault(at, set()).add(place)
    first = np.cumsum([0, *(len(chunk.keys) for chunk in table.chunks)])
    for at, places in inside.items():
        chosen = sorted(places)
        rows = table.chunks[at].rows.chosen(np.array(chosen))
        reads = lengths(reads_of(rows)).tolist()
        versions, writes = rows.values[VERSION].tolist(), rows.values[WRITES].tolist()
        for each in zip(chosen, states_of(rows).tolist(), reads, versions, writes, strict=True):
            place, state, read, version, numbers = each
            nodes = tuple(number for number in numbers if number != PAD)
            yield int(first[at]) + place, state, read, version, nodes


def _is_open(request: Request) -> bool:
    return not request.finished_epoch
