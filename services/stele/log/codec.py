"""Records to bytes and back: Avro single-object encoding, ``C3 01`` + CRC-64-AVRO fingerprint + body."""

from io import BytesIO
from typing import Any, Final, TypeVar

import msgspec
from fastavro import schemaless_reader, schemaless_writer

from stele.domain.base import Command, Fact
from stele.domain.commands import Envelope, Outcome, command_name
from stele.domain.facts import Epoch
from stele.domain.messages import Ack, Order, Report
from stele.log.schemas import HEADER_BYTES, load_schemas

T = TypeVar("T", bound=msgspec.Struct)

_FACTS: Final[dict[str, type]] = {
    f"stele.{fact.__name__}": fact for fact in Fact.__subclasses__()
}
_COMMANDS: Final[dict[str, type]] = {
    f"stele.{command.__struct_config__.tag}": command
    for command in Command.__subclasses__()
}
_BYTES: Final = (bytes,)


class DecodeError(ValueError):
    """The bytes are not a whole record of a known schema. ``unknown_schema`` tells which of the two."""

    def __init__(self, message: str, *, unknown_schema: bool = False) -> None:
        self.unknown_schema = unknown_schema
        super().__init__(message)


def encode_epoch(epoch: Epoch) -> bytes:
    record = _builtins(epoch)
    record["facts"] = [_named(fact) for fact in record["facts"]]
    return _write("Epoch", record)


def decode_epoch(value: bytes) -> Epoch:
    """Raises DecodeError."""
    record = _read("Epoch", value)
    try:
        record["facts"] = tuple(
            [
                msgspec.convert(body, _FACTS[name], builtin_types=_BYTES)
                for name, body in record["facts"]
            ]
        )
        record["required_features"] = tuple(record["required_features"])
        return Epoch(**record)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise DecodeError(f"not an epoch: {error}") from error


def encode_envelope(envelope: Envelope) -> bytes:
    record = _builtins(envelope)
    name = f"stele.{command_name(envelope.command)}"
    record["command"] = (name, record["command"])
    return _write("Envelope", record)


def decode_envelope(value: bytes) -> Envelope:
    """Raises DecodeError."""
    record = _read("Envelope", value)
    try:
        name, body = record["command"]
        record["command"] = msgspec.convert(body, _COMMANDS[name])
        return Envelope(**record)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise DecodeError(f"not a command: {error}") from error


def encode_outcome(outcome: Outcome) -> bytes:
    return _write("Outcome", _builtins(outcome))


def decode_outcome(value: bytes) -> Outcome:
    """Raises DecodeError."""
    return _decode("Outcome", Outcome, value)


def encode_order(order: Order) -> bytes:
    return _write("Order", _builtins(order))


def decode_order(value: bytes) -> Order:
    """Raises DecodeError."""
    return _decode("Order", Order, value)


def encode_report(report: Report) -> bytes:
    return _write("Report", _builtins(report))


def decode_report(value: bytes) -> Report:
    """Raises DecodeError."""
    return _decode("Report", Report, value)


def encode_ack(ack: Ack) -> bytes:
    return _write("Ack", _builtins(ack))


def decode_ack(value: bytes) -> Ack:
    """Raises DecodeError."""
    return _decode("Ack", Ack, value)


def _builtins(struct: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(struct, builtin_types=_BYTES)
    return found


def _named(fact: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"stele.{fact['type']}", fact


def _write(name: str, record: dict[str, Any]) -> bytes:
    schemas = load_schemas()
    out = BytesIO()
    out.write(schemas.headers[name])
    schemaless_writer(out, schemas.newest[name], record)
    return out.getvalue()


def _read(name: str, value: bytes) -> dict[str, Any]:
    schemas = load_schemas()
    header = value[:HEADER_BYTES]
    found = schemas.by_header.get(header)
    if found is None or found[0] != name:
        raise DecodeError(
            f"no schema of {name} has fingerprint {header.hex()}", unknown_schema=True
        )
    newest = schemas.newest[name]
    body = BytesIO(value)
    body.seek(HEADER_BYTES)
    try:
        record: dict[str, Any] = schemaless_reader(
            body,
            found[1],
            None if header == schemas.headers[name] else newest,
            return_record_name=True,
            return_record_name_override=True,
        )
    except (
        Exception
    ) as error:  # fastavro raises what its parser meets: EOFError, ValueError, IndexError ...
        raise DecodeError(f"the bytes end or break inside the record: {error!r}") from error
    if body.tell() != len(value):
        raise DecodeError(f"{len(value) - body.tell()} bytes too many after the record")
    return record


def _decode(name: str, kind: type[T], value: bytes) -> T:
    try:
        return msgspec.convert(_read(name, value), kind, builtin_types=_BYTES)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not a {name.lower()}: {error}") from error
