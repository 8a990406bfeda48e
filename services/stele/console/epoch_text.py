"""An epoch for the pages: its actor, reason, facts in words, and changed rows of maps.

Pure functions.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from stele.console.maps import TOKENS, states_of
from stele.console.views import copied
from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.requests import RequestForgotten
from stele.domain.model.ring import PlacementChanged, PlacementDropped
from stele.domain.registry import FACTS
from stele.domain.ring.columns import PAD, lengths
from stele.domain.ring.placement import VERSION, WRITES, Placement, reads_of
from stele.domain.view import epoch_view
from stele.words.facts import EpochRow, altered_table, fact_lines
from stele.words.names import ID, HistoryNames

MOST_LINES: Final = 40
"""Limit of fact lines in an event. A page requests the whole epoch to show the rest."""
MOST_ROWS: Final = 2000
"""Limit of changed rows of a map in an event. With more, the page reads the map again."""


Row = tuple[int, int, int, int, tuple[int, ...]]


class MapChange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a map that an epoch changed: (place, state, reads, version, node numbers).

    With ``anew``, the page reads the whole map again.
    """

    rows: tuple[Row, ...] = ()
    anew: bool = False


class EpochText(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch in words.

    ``lines`` are its facts, ``more`` is the number of lines left out, and ``touched`` are the
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
    subjects: dict[str, str] = {}
    """By id of a request or transition in ``lines``: what it is about, such as ``join n4``."""
    live: bool = False
    """True if ``touched``, ``nodes`` and ``maps`` are filled."""
    touched: tuple[str, ...] = ()
    nodes: int = 0
    """Number of numbered nodes. A page that knows fewer reads the map again."""
    maps: dict[str, MapChange] = {}


def names_of(*images: Image) -> HistoryNames:
    """Return the names that exist at these epochs, for the words of the following ones."""
    names = HistoryNames()
    for image in images:
        schema, requests = image.schema, image.requests.requests.values()
        unfinished = (r for r in requests if not r.finished_epoch)
        names.add(schema.by_id.values(), schema.tables.values(), unfinished)
        for each in image.topology.open():
            names.add_transition(each.transition_id, each.request_ids())
    return names


def row_of(epoch: Epoch) -> EpochRow:
    """Return the epoch as the word functions take it, as in JSON."""
    return msgspec.json.decode(msgspec.json.encode(epoch_view(epoch)), type=EpochRow)


def epoch_text(row: EpochRow, names: HistoryNames) -> EpochText:
    """Return a past epoch in words, without its changes of maps."""
    lines = fact_lines(row, names)
    shown = tuple(lines[:MOST_LINES])
    actor, reason = _asked_by(row)
    return copied(
        EpochText,
        row,
        actor=actor,
        reason=reason,
        refused=any(fact.get("type") == "CommandRefused" for fact in row.facts),
        lines=shown,
        more=max(0, len(lines) - MOST_LINES),
        subjects={
            each: what
            for line in shown
            for each in ID.findall(line)
            if (what := names.operation(each))
        },
    )


def _asked_by(row: EpochRow) -> tuple[str, str]:
    """Return the actor and the reason of an epoch, or else of its refusal or its only request."""
    facts = [f for f in row.facts if f.get("type") == "CommandRefused"]
    facts += [f["request"] for f in row.facts if f.get("type") == "RequestChanged"]
    if len(facts) != 1:
        return row.actor, row.reason
    return row.actor or facts[0].get("actor", ""), row.reason or facts[0].get("reason", "")


def live_epoch_text(before: Image, epoch: Epoch, after: Image) -> EpochText:
    """Return a new epoch in words, with its changes of maps."""
    facts = [*Delta(before, epoch).facts()]
    row, names = row_of(epoch), names_of(before)
    forgotten = (before.request(f.request_id) for f in facts if isinstance(f, RequestForgotten))
    names.add((), (), filter(None, forgotten))
    altered = before.schema.tables.get(altered_table(row))
    if altered is not None:
        names.learn_options(row.epoch, {"table": msgspec.to_builtins(altered)})
    return msgspec.structs.replace(
        epoch_text(row, names),
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
    """Yield the rows that begin at or contain ``starts``, chunk by chunk."""
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
