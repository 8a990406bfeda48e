"""Hashes of states: sums of the rows' hashes. Order, history and chunks have no influence."""

import hashlib
from collections.abc import Iterable
from operator import methodcaller
from typing import Final

import msgspec

HASH_BYTES: Final = 16
MODULUS: Final = 1 << (8 * HASH_BYTES)

LATER_FIELDS: Final[tuple[bytes, ...]] = (
    b',"step_epoch":0',
    b',"begin_frozen":false',
    b',"claims_host_id":""',
    b',"reset":[]',
    b',"enable_features":[]',
    b',"retired":[]',
    b',"cdc":""',
    b',"columns_digest":""',
)
"""Fields added after the form of records was fixed (``schemas/FORM``), as JSON with their empty
value.

Older builds do not have them and must compute the same hashes.
"""


# ``column.as_list`` would do the same for columns, but the command line hashes without numpy.
_SORTED_JSON: Final = msgspec.json.Encoder(enc_hook=methodcaller("tolist"), order="deterministic")


def row_hash(row: bytes) -> int:
    """Return the hash of one row's canonical bytes, a number below 2**128."""
    return int.from_bytes(hashlib.blake2b(row, digest_size=HASH_BYTES).digest(), "big")


def hash_of_facts(facts: Iterable[msgspec.Struct]) -> int:
    """Return the sum modulo 2**128 of the hashes of the facts' canonical JSON."""
    # A sum does not depend on the order of the facts.
    return sum(row_hash(as_before(_SORTED_JSON.encode(fact))) for fact in facts) % MODULUS


def as_before(encoded: bytes) -> bytes:
    """Return canonical JSON without the later fields that are empty.

    Quotes in texts are escaped and never match.
    """
    for field in LATER_FIELDS:
        encoded = encoded.replace(field, b"")
    return encoded
