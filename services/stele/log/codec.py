"""Records to bytes and back: Avro single-object encoding, ``C3 01`` + CRC-64-AVRO fingerprint + body."""

from functools import cache
from io import BytesIO
from struct import Struct
from typing import Any, Final, TypeVar

import msgspec
from fastavro import parse_schema, schemaless_writer

from stele.domain.column import as_bytes, column_of
from stele.domain.commands import Envelope, Outcome, command_name
from stele.domain.facts import AnyFact, Epoch
from stele.domain.messages import (
    Ack,
    Load,
    Order,
    PlacementRow,
    PlacementsMarker,
    Report,
)
from stele.domain.staging.facts import Part
from stele.log.avro import Reader, read_null, reader_of
from stele.log.avro_writer import Writer, writer_of
from stele.log.chain import FROZEN, FROZEN_BYTES, FROZEN_FIELDS, STATE_BYTES
from stele.log.schemas import HEADER_BYTES, Schema, load_schemas
from stele.log.sufficient import oldest_sufficient

T = TypeVar("T", bound=msgspec.Struct)
Named = tuple[str, dict[str, Any]]
"""A record of a union, with its name."""

_BYTES: Final = (bytes,)
_FROZEN_AFTER_HEADER: Final = Struct(FROZEN.format.replace("10x", ""))
_ID_SIZES: Final = [STATE_BYTES] * 4
assert HEADER_BYTES + _FROZEN_AFTER_HEADER.size == FROZEN_BYTES
_FEW_FACTS: Final = 3
"""What has more is written by fastavro: it is slow to begin, and fast from field to field."""
_TAIL_FIELDS: Final = tuple(n for n in Epoch.__struct_fields__ if n not in FROZEN_FIELDS)


class DecodeError(ValueError):
    """The bytes are not a whole record of a known schema. ``unknown_schema`` tells which of the two."""

    def __init__(self, message: str, *, unknown_schema: bool = False) -> None:
        self.unknown_schema = unknown_schema
        super().__init__(message)


def encode_epoch(epoch: Epoch) -> bytes:
    """By the oldest schema that can say it. The frozen part is laid down by hand: it is the same in every
    schema, and that is faster.
    """
    record = {name: getattr(epoch, name) for name in _TAIL_FIELDS}
    facts = _builtins(epoch.facts)
    record["facts"] = [_named(fact) for fact in facts]
    header = oldest_sufficient("Epoch", record)
    ids = (epoch.prev_state_id, epoch.state_id, epoch.log_id, epoch.witness_state_id)
    assert [*map(len, ids)] == _ID_SIZES
    out = bytearray(header)
    out += _FROZEN_AFTER_HEADER.pack(*ids, epoch.epoch, epoch.witness_epoch)
    if len(facts) <= _FEW_FACTS:
        _writers()[header](out, record)
        return bytes(out)
    rest = BytesIO()
    schemaless_writer(rest, _tails()[header], record)
    return bytes(out) + rest.getvalue()


def decode_epoch(value: bytes) -> Epoch:
    """Raises DecodeError."""
    if len(value) < FROZEN_BYTES:
        raise DecodeError(f"{len(value)} bytes are no epoch")
    record = _read("Epoch", value, FROZEN_BYTES)
    record.update(zip(FROZEN_FIELDS, FROZEN.unpack_from(value), strict=True))
    return _convert(record, Epoch)


def fact_size(fact: AnyFact) -> int:
    """Bytes of a fact in a record, or a few more."""
    out = bytearray()
    _facts_writer()(out, [_named(_builtins(fact))])
    return len(out)


def encode_envelope(envelope: Envelope) -> bytes:
    record = _builtins(envelope)
    name = f"stele.{command_name(envelope.command)}"
    record["command"] = (name, record["command"])
    return _write("Envelope", record)


def decode_envelope(value: bytes) -> Envelope:
    """Raises DecodeError."""
    return _convert(_read("Envelope", value), Envelope)


def encode_outcome(outcome: Outcome) -> bytes:
    return _write("Outcome", _builtins(outcome))


def decode_outcome(value: bytes) -> Outcome:
    """Raises DecodeError."""
    return _convert(_read("Outcome", value), Outcome)


def encode_order(order: Order) -> bytes:
    return _write("Order", _builtins(order))


def decode_order(value: bytes) -> Order:
    """Raises DecodeError."""
    return _convert(_read("Order", value), Order)


def encode_report(report: Report) -> bytes:
    return _write("Report", _builtins(report))


def decode_report(value: bytes) -> Report:
    """Raises DecodeError."""
    return _convert(_read("Report", value), Report)


def encode_ack(ack: Ack) -> bytes:
    return _write("Ack", _builtins(ack))


def decode_ack(value: bytes) -> Ack:
    """Raises DecodeError."""
    return _convert(_read("Ack", value), Ack)


def encode_load(load: Load) -> bytes:
    return _write("Load", _builtins(load))


def decode_load(value: bytes) -> Load:
    """Raises DecodeError, also for numbers that cannot be."""
    load = _convert(_read("Load", value), Load)
    flaw = load.flaw()
    if flaw:
        raise DecodeError(f"no load of '{load.node_id}': {flaw}")
    return load


def encode_placement_row(row: PlacementRow) -> bytes:
    return _write("PlacementRow", _builtins(row))


def decode_placement_row(value: bytes) -> PlacementRow:
    """Raises DecodeError."""
    return _convert(_read("PlacementRow", value), PlacementRow)


def encode_placements_marker(marker: PlacementsMarker) -> bytes:
    return _write("PlacementsMarker", _builtins(marker))


def decode_placements_marker(value: bytes) -> PlacementsMarker:
    """Raises DecodeError."""
    return _convert(_read("PlacementsMarker", value), PlacementsMarker)


def _builtins(value: object) -> Any:
    """Structs as fastavro takes them."""
    return msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=as_bytes)


def _named(fact: dict[str, Any]) -> Named:
    """A fact as fastavro takes it; a part's facts are a union too."""
    if fact["type"] == Part.__name__:
        fact["facts"] = [_named(staged) for staged in fact["facts"]]
    return f"stele.{fact['type']}", fact


def _write(name: str, record: dict[str, Any]) -> bytes:
    """By the oldest schema that can say it: a process that is not upgraded yet may have to read it."""
    header = oldest_sufficient(name, record)
    out = bytearray(header)
    _writers()[header](out, record)
    return bytes(out)


def _read(name: str, value: bytes, begin: int = HEADER_BYTES) -> dict[str, Any]:
    header = value[:HEADER_BYTES]
    kind, read = _readers().get(header, ("", read_null))
    if kind != name:
        raise _unknown_schema(name, header)
    record: dict[str, Any]
    try:
        record, end = read(value, begin)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"the bytes end or break inside the record: {error!r}") from error
    if end > len(value):
        raise DecodeError(f"the bytes end {end - len(value)} before the record does")
    if end < len(value):
        raise DecodeError(f"{len(value) - end} bytes too many after the record")
    return record


def _convert(record: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(record, kind, builtin_types=_BYTES, dec_hook=column_of)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not {kind.__name__}: {error}") from error


def _unknown_schema(name: str, header: bytes) -> DecodeError:
    text = f"no schema of {name} has fingerprint {header.hex()}"
    return DecodeError(text, unknown_schema=True)


@cache
def _facts_writer() -> Writer:
    """Writes an epoch's facts alone."""
    schema = load_schemas().newest["Epoch"]
    (facts,) = [field["type"] for field in schema["fields"] if field["name"] == "facts"]
    return writer_of(parse_schema(facts, _write_hint=False))


@cache
def _tails() -> dict[bytes, Schema]:
    """By header, the schemas of Epoch without the fields of the frozen part."""
    return {
        header: parse_schema(
            {**schema, "fields": schema["fields"][len(FROZEN_FIELDS) :]}, _write_hint=False
        )
        for header, (name, schema) in load_schemas().by_header.items()
        if name == "Epoch"
    }


@cache
def _writers() -> dict[bytes, Writer]:
    """By header, what writes the record; an epoch's is for what follows its frozen part."""
    bodies = {header: schema for header, (_, schema) in load_schemas().by_header.items()}
    return {header: writer_of(schema) for header, schema in (bodies | _tails()).items()}


@cache
def _readers() -> dict[bytes, tuple[str, Reader]]:
    """By header, the name of the record and what reads it; an epoch's is for what follows its frozen part."""
    schemas = load_schemas()
    bodies = {header: schema for header, (_, schema) in schemas.by_header.items()} | _tails()
    return {
        header: (name, reader_of(bodies[header], bodies[schemas.headers[name]]))
        for header, (name, _) in schemas.by_header.items()
    }
