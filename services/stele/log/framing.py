"""Confluent's framing of Avro: a byte 0, the id of a schema in a registry in 4 bytes, then the body.

Which schema an id stands for is told beforehand (docs/decisions/053-commands-in-confluents-framing.md).
The body is the same in both encodings: a framed record becomes one in single-object encoding by another header.
"""

from collections.abc import Mapping
from typing import Final

from stele.log.chain import MAGIC
from stele.log.codec import DecodeError
from stele.log.schemas import HEADER_BYTES, load_schemas

FRAME: Final = b"\x00"
FRAME_BYTES: Final = 5
SchemaIds = Mapping[int, bytes]
"""By the registry's id, the header of the schema."""


def schema_ids(text: str, name: str) -> SchemaIds:
    """Of ``id=fingerprint,...``, the fingerprints as in the names of ``schemas/history``.

    Raises ValueError when one is of no schema of ``name``.
    """
    known = load_schemas().by_header
    found = dict[int, bytes]()
    for each in filter(None, text.split(",")):
        number, _, fingerprint = each.partition("=")
        header = MAGIC + bytes.fromhex(fingerprint)
        if known.get(header, ("",))[0] != name:
            fingerprints = ", ".join(
                h[len(MAGIC) :].hex() for h, (n, _) in known.items() if n == name
            )
            raise ValueError(f"{fingerprint} is no schema of {name}; those are {fingerprints}")
        found[int(number)] = header
    return found


def unframed(value: bytes, ids: SchemaIds) -> bytes:
    """The record in single-object encoding, if it is framed; else as it is. Raises DecodeError."""
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
