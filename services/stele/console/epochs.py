"""Epochs and states as metadata-log gives them, as the core's own: pure functions."""

import io
from typing import NamedTuple

import msgspec

from stele.domain.column import column_of
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.log.archive import snapshots
from stele.log.archive.container import Container
from stele.runtime.answers.history import EpochAnswer, SearchAnswer

_decoder: msgspec.json.Decoder[EpochAnswer] = msgspec.json.Decoder(EpochAnswer, dec_hook=column_of)
_list_decoder: msgspec.json.Decoder[list[EpochAnswer]] = msgspec.json.Decoder(
    list[EpochAnswer], dec_hook=column_of
)
_searched_decoder: msgspec.json.Decoder[SearchAnswer] = msgspec.json.Decoder(
    SearchAnswer, dec_hook=column_of
)


class Searched(NamedTuple):
    """Epochs that were searched for; see ``SearchAnswer``."""

    epochs: tuple[Epoch, ...]
    newest: int
    looked_at: int
    next_before: int
    begins: int


def epoch_of(data: bytes) -> Epoch:
    """An event of ``/v1/epochs``. Raises msgspec.DecodeError, ValueError."""
    return _epoch(_decoder.decode(data))


def epochs_of(data: bytes) -> list[Epoch]:
    """An answer of ``/v1/epochs``. Raises msgspec.DecodeError, ValueError."""
    return [_epoch(answer) for answer in _list_decoder.decode(data)]


def searched(data: bytes) -> Searched:
    """An answer of ``/v1/epochs/search``. Raises msgspec.DecodeError, ValueError."""
    found = _searched_decoder.decode(data)
    epochs = tuple(map(_epoch, found.epochs))
    return Searched(epochs, found.newest, found.looked_at, found.next_before, found.begins)


def image_of(dump: bytes) -> Image:
    """An answer of ``/v1/dump``. Raises DamagedFileError, UnreadableSnapshotError, ValueError."""
    container = Container(io.BytesIO(dump), snapshots.SCHEMA)
    head = snapshots.read_head(container)
    return head.start(snapshots.read_facts(container)).image


def _epoch(answer: EpochAnswer) -> Epoch:
    return Epoch(
        prev_state_id=bytes.fromhex(answer.prev_state_id),
        state_id=bytes.fromhex(answer.state_id),
        log_id=bytes.fromhex(answer.log_id),
        witness_state_id=bytes.fromhex(answer.witness_state_id),
        epoch=answer.epoch,
        witness_epoch=answer.witness_epoch,
        request_id=answer.request_id,
        command=answer.command,
        facts=answer.facts,
        command_digest=bytes.fromhex(answer.command_digest),
        actor=answer.actor,
        reason=answer.reason,
        origin=answer.origin,
        at_ms=answer.at_ms,
        required_features=answer.required_features,
    )
