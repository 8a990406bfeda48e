"""Confluent's framing of Avro: a byte 0, the id of a schema in a registry in 4 bytes, then the body.

Which schema an id stands for is told beforehand (docs/decisions/053-commands-in-confluents-framing.md, and
057 for the topic placements).
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


def schema_ids(text: str, *names: str) -> SchemaIds:
    """Of ``id=fingerprint,...``, the fingerprints as in the names of ``schemas/history``.

    Raises ValueError when one is of no schema of these names.
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


class Framing:
    """Values of a topic in one form: framed by the ids that were told, or in single-object encoding without
    any.

    Every schema of ``names`` that a writer may choose must have an id then: raises ValueError, which says
    which lacks one.
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
                f"no id was told of {', '.join(lacking)}; register the schema, and name its id"
            )

    def framed(self, value: bytes) -> bytes:
        """A record in single-object encoding, as the topic is to have it."""
        if not self._frames:
            return value
        return self._frames[value[:HEADER_BYTES]] + value[HEADER_BYTES:]

    def plain(self, value: bytes) -> bytes:
        """The record in single-object encoding. Raises DecodeError for one of the other form."""
        if bool(self._frames) != (value[:1] == FRAME):
            raise DecodeError("the record is not in the form that its topic is to have")
        return unframed(value, self._headers)
