"""The fold's rows in other shapes: bytes for the state, cells for what the operator gives out. Pure."""

from typing import Final

import msgspec

from stele.domain.ring.ranges import RangeReplicas
from stele.placements.fold import ClusterFold, Held, HeldRows

Cells = dict[str, object]
"""One row in the shape of ``schema.CHANGES_OUT``; columns without a value are left out."""

_held: Final = msgspec.msgpack.Decoder(tuple[Held, ...])


def encode_rows(rows: HeldRows) -> bytes:
    return msgspec.msgpack.encode([rows[start] for start in sorted(rows)])


def decode_rows(value: bytes) -> HeldRows:
    return {held.row.start: held for held in _held.decode(value)}


def rows_out(cluster: str, fold: ClusterFold) -> list[Cells]:
    """What changed, in the shape of ``schema.CHANGES_OUT``."""
    epochs = [
        {
            "kind": "epoch",
            "cluster": cluster,
            "epoch": winner.epoch,
            "state_id": winner.state_id.hex(),
            "request_id": winner.request_id,
            "command": winner.command,
            "actor": winner.actor,
            "reason": winner.reason,
            "origin": winner.origin,
            "at_ms": winner.at_ms,
            "offset": winner.offset,
        }
        for winner in fold.winners
    ]
    history = [
        {
            "kind": "history",
            "cluster": cluster,
            "epoch": found.from_epoch if found.to_epoch is None else found.to_epoch,
            "placement": found.placement,
            **_row(found.row),
            "from_epoch": found.from_epoch,
            "to_epoch": found.to_epoch,
        }
        for found in fold.history
    ]
    current = [_current(cluster, fold, *key) for key in sorted(fold.touched)]
    return [*epochs, *history, *current]


def _current(cluster: str, fold: ClusterFold, placement: str, start: int) -> Cells:
    held = fold.current(placement, start)
    key = {
        "kind": "current",
        "cluster": cluster,
        "epoch": fold.place.epoch,
        "state_id": fold.place.state_id.hex(),
        "placement": placement,
        "start": start,
        "gone": held is None,
    }
    return key if held is None else {**key, **_row(held.row), "from_epoch": held.from_epoch}


def _row(row: RangeReplicas) -> Cells:
    return {
        "start": row.start,
        "end": row.end,
        "reads": list(row.reads),
        "writes": list(row.writes),
    }
