"""What a record says of itself without being decoded: who asked for what and when, and which texts it may hold.

Facts stand last in a record and are nearly all of it. Who looks through millions of records for a few decodes
only those that may be meant.
"""

from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from typing import Final, NamedTuple

from stele.log.archive.container import long_bytes
from stele.log.avro import Reader, reader_of
from stele.log.chain import FROZEN_BYTES, FROZEN_FIELDS
from stele.log.codec import DecodeError
from stele.log.schemas import HEADER_BYTES, Schema, load_schemas

_FIELDS: Final = ("request_id", "command", "actor", "reason", "origin", "at_ms")


class Audit(NamedTuple):
    """Of one epoch; ``at_ms`` by its writer's clock."""

    request_id: str
    command: str
    actor: str
    reason: str
    origin: str
    at_ms: int


def decode_audit(value: bytes) -> Audit:
    """Raises DecodeError."""
    read = _readers().get(value[:HEADER_BYTES])
    if read is None:
        text = f"no schema of Epoch has fingerprint {value[:HEADER_BYTES].hex()}"
        raise DecodeError(text, unknown_schema=True)
    try:
        record, _ = read(value, FROZEN_BYTES)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"the bytes end or break inside the record: {error!r}") from error
    return Audit(*(record[name] for name in _FIELDS))


class Needles:
    """What records of some question must hold, as bytes.

    ``exact``: one of each of these sets, as a whole text. ``words``: each of them somewhere in a text, in small
    letters. A record that has them all may still be another one.
    """

    def __init__(self, exact: Iterable[Iterable[str]], words: Iterable[bytes] = ()) -> None:
        self._exact = [tuple(map(string_bytes, texts)) for texts in exact]
        self._words = tuple(words)

    def may_be_in(self, value: bytes) -> bool:
        for texts in self._exact:
            if not any(text in value for text in texts):
                return False
        if not self._words:
            return True
        small = value.lower()
        return all(word in small for word in self._words)


def string_bytes(text: str) -> bytes:
    """A text as Avro writes it."""
    encoded = text.encode()
    return long_bytes(len(encoded)) + encoded


@cache
def _readers() -> dict[bytes, Reader]:
    """By header, what reads the fields of an epoch between its frozen part and its facts."""
    schemas = load_schemas()
    newest = _between(schemas.newest["Epoch"])
    return {
        header: reader_of(_between(schema), newest)
        for header, (name, schema) in schemas.by_header.items()
        if name == "Epoch"
    }


def _between(schema: Schema) -> Schema:
    fields = schema["fields"][len(FROZEN_FIELDS) :]
    return {**schema, "fields": [*takewhile(lambda field: field["name"] != "facts", fields)]}
