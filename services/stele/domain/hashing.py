"""Hashes of states: sums of the hashes of rows, so that neither order nor history nor chunks count."""

import hashlib
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

HASH_BYTES: Final = 16
MODULUS: Final = 1 << (8 * HASH_BYTES)

LATER_FIELDS: Final[tuple[bytes, ...]] = (
    b',"step_epoch":0',
    b',"begin_frozen":false',
    b',"claims_host_id":""',
)
"""Fields that came after the form of records was fixed (``schemas/FORM``), as they are in JSON when they say
nothing (``,"name":0``): builds from before do not have them, and must come to the same hashes.
"""


class _Column(Protocol):
    """``column.Column``, of which this must not know: the command line hashes too, without numpy."""

    def tolist(self) -> list[int]: ...


def _as_list(column: _Column) -> list[int]:
    return column.tolist()


_SORTED_JSON: Final = msgspec.json.Encoder(enc_hook=_as_list, order="deterministic")


def row_hash(row: bytes) -> int:
    """The hash of one row's canonical bytes, a number below 2**128."""
    return int.from_bytes(hashlib.blake2b(row, digest_size=HASH_BYTES).digest(), "big")


def hash_of_facts(facts: Iterable[msgspec.Struct]) -> int:
    """The sum modulo 2**128 of the hashes of the facts' canonical JSON."""
    return sum(row_hash(as_before(_SORTED_JSON.encode(fact))) for fact in facts) % MODULUS


def as_before(encoded: bytes) -> bytes:
    """Canonical JSON without the later fields that say nothing. In texts quotes are escaped, so none is hit."""
    for field in LATER_FIELDS:
        encoded = encoded.replace(field, b"")
    return encoded
