"""Choose the oldest schema that can express a record, so that rolling upgrades work.

A new build has facts and fields that older builds lack. While a record does not use them, older
builds can read it. ``decide`` rejects facts whose feature is disabled (docs/design.md, rule 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from io import BytesIO
from struct import Struct
from typing import Any, Final, TypeVar

import msgspec
from fastavro import parse_schema, schemaless_writer

from stele.domain.column import as_bytes, column_of
from stele.domain.commands import AlterSchema, Envelope, Outcome, command_name
from stele.domain.facts import AnyFact, Epoch
from stele.domain.messages import (
    Ack,
    Load,
    Order,
    PlacementRow,
    PlacementsMarker,
    Report,
    SchemaObject,
)
from stele.domain.staging import Part
from stele.log.avro import Reader, read_null, reader_of
from stele.log.avro_writer import Writer, writer_of
from stele.log.chain import FROZEN, FROZEN_BYTES, FROZEN_FIELDS, MAGIC, STATE_BYTES
from stele.log.schemas import HEADER_BYTES, Schema, load_schemas, records_of

Fields = dict[str, dict[str, Schema]]
"""Fields by record name and field name."""


@cache
def older_releases(name: str) -> tuple[tuple[bytes, Fields, Fields], ...]:
    """Return the older releases of a schema, the oldest first.

    Each is its header, its fields, and the fields of the newest schema that it may not keep.
    """
    schemas = load_schemas()
    *older, newest = schemas.releases[name]
    fields = _fields(schemas.by_header[newest][1])
    known = [(header, _fields(schemas.by_header[header][1])) for header in older]
    return tuple([(header, each, _fields_at_risk(each, fields)) for header, each in known])


def _fields_at_risk(known: Fields, newest: Fields) -> Fields:
    """Return the fields that the older release lacks, and those that may contain such a field."""
    found: Fields = {
        record: {name: field for name, field in fields.items() if name not in known.get(record, ())}
        for record, fields in newest.items()
    }
    records, before = {each for each in newest if each not in known or found[each]}, set[str]()
    while records != before:
        before = records
        for record, fields in newest.items():
            inside = {n: f for n, f in fields.items() if _names_in(f["type"]) & before}
            found[record].update(inside)
        records = before | {record for record, fields in found.items() if fields}
    return found


def _names_in(schema: Schema) -> set[str]:
    """Return the names of the types in a field's type, without those inside of its records."""
    if isinstance(schema, str):
        return {schema}
    if isinstance(schema, list):
        return set().union(*map(_names_in, schema))
    if "name" in schema:
        return {schema["name"]}
    return _names_in(schema.get("items") or schema.get("values") or schema["type"])


def oldest_sufficient(name: str, record: dict[str, Any]) -> bytes:
    """Return the header of the oldest release that keeps all of a record in fastavro's form.

    The value of a union of records is a pair of the record's name and its fields. ``facts`` are a
    list of these pairs. The newest release always suffices.
    """
    for header, known, at_risk in older_releases(name):
        if _holds(f"stele.{name}", record, known, at_risk):
            return header
    return load_schemas().headers[name]


def _holds(name: str, value: dict[str, Any], known: Fields, at_risk: Fields) -> bool:
    """Return whether all fields that the older release lacks have their defaults, also inside."""
    if name not in known:
        return False
    for field, schema in at_risk[name].items():
        if field not in value:
            continue
        if field not in known[name]:
            given = value[field]
            plain = list(given) if isinstance(given, tuple) else given  # Avro's defaults are lists
            if plain != schema.get("default"):
                return False
        elif not _holds_inside(schema["type"], value[field], known, at_risk):
            return False
    return True


def _holds_inside(schema: Schema, value: Any, known: Fields, at_risk: Fields) -> bool:
    if isinstance(schema, str):
        return schema not in at_risk or _holds(schema, value, known, at_risk)
    if isinstance(schema, list) and isinstance(value, tuple) and value[:1] and value[0] in at_risk:
        named, body = value
        return _holds(named, body, known, at_risk)
    if isinstance(schema, list):
        return value is None or all(
            _holds_inside(branch, value, known, at_risk)
            for branch in schema
            if branch != "null" and isinstance(value, dict | tuple)
        )
    held: Iterable[bool] = ()
    match schema["type"]:
        case "record":
            held = (_holds(schema["name"], value, known, at_risk),)
        case "array" if isinstance(schema["items"], list):
            held = (_holds(each, body, known, at_risk) for each, body in value)
        case "array":
            held = (_holds_inside(schema["items"], each, known, at_risk) for each in value)
        case "map":
            values = value.values()
            held = (_holds_inside(schema["values"], each, known, at_risk) for each in values)
    return all(held)


def _fields(schema: Schema) -> Fields:
    return {
        record: {field["name"]: field for field in fields} for record, fields in records_of(schema)
    }


# Encode and decode records in Avro's single-object encoding.
#
# A record is ``C3 01``, the CRC-64-AVRO fingerprint of its schema, and the body (Apache Avro
# Specification, "Single-object encoding"). See docs/design.md, rule 14.


T = TypeVar("T", bound=msgspec.Struct)
Named = tuple[str, dict[str, Any]]
"""Name and fields of a record in a union."""

_BYTES: Final = (bytes,)
_FROZEN_AFTER_HEADER: Final = Struct(FROZEN.format.replace("10x", ""))
_ID_SIZES: Final = [STATE_BYTES] * 4
assert HEADER_BYTES + _FROZEN_AFTER_HEADER.size == FROZEN_BYTES
_FEW_FACTS: Final = 3
"""Epochs with more facts are written by fastavro, which starts slowly but is fast per field."""
_TAIL_FIELDS: Final = tuple(n for n in Epoch.__struct_fields__ if n not in FROZEN_FIELDS)


class DecodeError(ValueError):
    """The bytes are not a whole record of a known schema.

    ``unknown_schema`` is True if the schema is unknown, and False if the bytes are broken.
    """

    def __init__(self, message: str, *, unknown_schema: bool = False) -> None:
        self.unknown_schema = unknown_schema
        super().__init__(message)


def encode_epoch(epoch: Epoch) -> bytes:
    """Encode an epoch with the oldest schema that can express it.

    The frozen part is written directly: it is the same in every schema, and this is faster.
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
    """Decode an epoch. Raises DecodeError."""
    if len(value) < FROZEN_BYTES:
        raise DecodeError(f"{len(value)} bytes are no epoch")
    record = _read("Epoch", value, FROZEN_BYTES)
    record.update(zip(FROZEN_FIELDS, FROZEN.unpack_from(value), strict=True))
    return _convert(record, Epoch)


def fact_size(fact: AnyFact) -> int:
    """Return the bytes of a fact in a record, or a few more."""
    out = bytearray()
    _facts_writer()(out, [_named(_builtins(fact))])
    return len(out)


def encode_envelope(envelope: Envelope) -> bytes:
    record = _builtins(envelope)
    name = f"stele.{command_name(envelope.command)}"
    if isinstance(envelope.command, AlterSchema):
        changes = record["command"]["changes"]
        record["command"]["changes"] = [(f"stele.schema.{c['type']}", c) for c in changes]
    record["command"] = (name, record["command"])
    return _write("Envelope", record)


def decode_envelope(value: bytes) -> Envelope:
    """Decode a command's envelope. Raises DecodeError."""
    return _convert(_read("Envelope", value), Envelope)


def encode_outcome(outcome: Outcome) -> bytes:
    return _write("Outcome", _builtins(outcome))


def decode_outcome(value: bytes) -> Outcome:
    """Decode an outcome. Raises DecodeError."""
    return _convert(_read("Outcome", value), Outcome)


def encode_order(order: Order) -> bytes:
    return _write("Order", _builtins(order))


def decode_order(value: bytes) -> Order:
    """Decode an order. Raises DecodeError."""
    return _convert(_read("Order", value), Order)


def encode_report(report: Report) -> bytes:
    return _write("Report", _builtins(report))


def decode_report(value: bytes) -> Report:
    """Decode a report. Raises DecodeError."""
    return _convert(_read("Report", value), Report)


def encode_ack(ack: Ack) -> bytes:
    return _write("Ack", _builtins(ack))


def decode_ack(value: bytes) -> Ack:
    """Decode an ack. Raises DecodeError."""
    return _convert(_read("Ack", value), Ack)


def encode_load(load: Load) -> bytes:
    return _write("Load", _builtins(load))


def decode_load(value: bytes) -> Load:
    """Decode a load. Raises DecodeError, also for impossible numbers."""
    load = _convert(_read("Load", value), Load)
    flaw = load.flaw()
    if flaw:
        raise DecodeError(f"no load of '{load.node_id}': {flaw}")
    return load


def encode_placement_row(row: PlacementRow) -> bytes:
    return _write("PlacementRow", _builtins(row))


def decode_placement_row(value: bytes) -> PlacementRow:
    """Decode a row of a placement. Raises DecodeError."""
    return _convert(_read("PlacementRow", value), PlacementRow)


def encode_schema_object(row: SchemaObject) -> bytes:
    return _write("SchemaObject", _builtins(row))


def decode_schema_object(value: bytes) -> SchemaObject:
    """Decode an object of the schema. Raises DecodeError."""
    return _convert(_read("SchemaObject", value), SchemaObject)


def encode_placements_marker(marker: PlacementsMarker) -> bytes:
    return _write("PlacementsMarker", _builtins(marker))


def decode_placements_marker(value: bytes) -> PlacementsMarker:
    """Decode a marker of placements. Raises DecodeError."""
    return _convert(_read("PlacementsMarker", value), PlacementsMarker)


def _builtins(value: object) -> Any:
    """Return a struct in the form that fastavro accepts."""
    return msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=as_bytes)


def _named(fact: dict[str, Any]) -> Named:
    """Return a fact in the form that fastavro accepts. The facts of a part are a union too."""
    if fact["type"] == Part.__name__:
        fact["facts"] = [_named(staged) for staged in fact["facts"]]
    return f"stele.{fact['type']}", fact


def _write(name: str, record: dict[str, Any]) -> bytes:
    """Encode a record with the oldest schema that can express it, for readers not yet upgraded."""
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
    # The readers do not check for the end of the bytes, so the last position must be the end.
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
    """Return the writer of the facts of an epoch."""
    schema = load_schemas().newest["Epoch"]
    (facts,) = [field["type"] for field in schema["fields"] if field["name"] == "facts"]
    return writer_of(parse_schema(facts, _write_hint=False))


@cache
def _tails() -> dict[bytes, Schema]:
    """Return, by header, the schemas of Epoch without the fields of the frozen part."""
    return {
        header: parse_schema(
            {**schema, "fields": schema["fields"][len(FROZEN_FIELDS) :]}, _write_hint=False
        )
        for header, (name, schema) in load_schemas().by_header.items()
        if name == "Epoch"
    }


@cache
def _writers() -> dict[bytes, Writer]:
    """Return the writers by header. An epoch's writer begins behind the frozen part."""
    bodies = {header: schema for header, (_, schema) in load_schemas().by_header.items()}
    return {header: writer_of(schema) for header, schema in (bodies | _tails()).items()}


@cache
def _readers() -> dict[bytes, tuple[str, Reader]]:
    """Return record name and reader by header. An epoch's reader begins behind the frozen part."""
    schemas = load_schemas()
    bodies = {header: schema for header, (_, schema) in schemas.by_header.items()} | _tails()
    return {
        header: (name, reader_of(bodies[header], bodies[schemas.headers[name]]))
        for header, (name, _) in schemas.by_header.items()
    }


# Confluent's framing of Avro: a byte 0, the 4-byte id of a schema in a registry, then the body.
#
# The configuration maps ids to schemas (docs/decisions/053-commands-in-confluents-framing.md, and
# 057 for the topic placements). The body is the same in both encodings. Another header turns a
# framed record into one in single-object encoding.


FRAME: Final = b"\x00"
FRAME_BYTES: Final = 5
SchemaIds = Mapping[int, bytes]
"""Headers of schemas by their ids in the registry."""


def schema_ids(text: str, *names: str) -> SchemaIds:
    """Parse ``id=fingerprint,...`` with fingerprints as in the file names of ``schemas/history``.

    Raises ValueError for a fingerprint that no schema of ``names`` has.
    """
    known = load_schemas().by_header
    found = dict[int, bytes]()
    for each in filter(None, text.split(",")):
        number, _, fingerprint = each.partition("=")
        header = MAGIC + bytes.fromhex(fingerprint)
        if known.get(header, ("",))[0] not in names:
            fingerprints = ", ".join(
                h[len(MAGIC) :].hex() for h, (n, _) in known.items() if n in names
            )
            name = " or ".join(names)
            raise ValueError(f"{fingerprint} is no schema of {name}; those are {fingerprints}")
        found[int(number)] = header
    return found


def unframed(value: bytes, ids: SchemaIds) -> bytes:
    """Return a framed record in single-object encoding, and any other unchanged.

    Raises DecodeError.
    """
    if value[:1] != FRAME:
        return value
    if len(value) < FRAME_BYTES:
        raise DecodeError(f"{len(value)} bytes that begin with 00 are no framed record")
    number = int.from_bytes(value[1:FRAME_BYTES], "big")
    header = ids.get(number)
    if header is None:
        text = (
            f"schema {number} of a registry is not known here: name it in STELE_COMMAND_SCHEMA_IDS"
        )
        raise DecodeError(text, unknown_schema=True)
    assert len(header) == HEADER_BYTES
    return header + value[FRAME_BYTES:]


class Framing:
    """Converts the values of a topic: framed with ids, or single-object encoding without ids.

    With ids, every schema of ``names`` that a writer may choose must have one. Raises ValueError
    that names those without an id.
    """

    def __init__(self, text: str = "", *names: str) -> None:
        self._headers = schema_ids(text, *names)
        self._frames = {
            header: FRAME + number.to_bytes(FRAME_BYTES - len(FRAME), "big")
            for number, header in self._headers.items()
        }
        wanted = {h: n for n in names for h in load_schemas().releases[n]} if text else {}
        lacking = [
            f"{n} {h[len(MAGIC) :].hex()}" for h, n in wanted.items() if h not in self._frames
        ]
        if lacking:
            raise ValueError(
                f"no id is known of {', '.join(lacking)}; register the schema, and name its id"
            )

    def framed(self, value: bytes) -> bytes:
        """Return a record in single-object encoding in the topic's form."""
        if not self._frames:
            return value
        return self._frames[value[:HEADER_BYTES]] + value[HEADER_BYTES:]

    def plain(self, value: bytes) -> bytes:
        """Return the record in single-object encoding. Raises DecodeError for the other form."""
        if bool(self._frames) != (value[:1] == FRAME):
            raise DecodeError("the record is not in the form that its topic is to have")
        return unframed(value, self._headers)
