"""A state as the bytes of a command: its facts as JSON, packed."""

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.column import as_list, column_of
from stele.domain.facts import AnyFact

LARGEST_BYTES: Final = 256 * 1024 * 1024
"""Unpacked: a hundred times what a cluster of 300 nodes has."""

_facts: Final[msgspec.json.Decoder[tuple[AnyFact, ...]]] = msgspec.json.Decoder(
    tuple[AnyFact, ...], dec_hook=column_of
)


def packed_state(facts: Iterable[AnyFact]) -> bytes:
    return zlib.compress(msgspec.json.encode([*facts], enc_hook=as_list))


def unpacked_state(content: bytes) -> tuple[AnyFact, ...]:
    """Raises ValueError for what is no state."""
    unpacker = zlib.decompressobj()
    try:
        encoded = unpacker.decompress(content, LARGEST_BYTES)
        if not unpacker.eof:
            raise ValueError(f"it is torn, or has more than {LARGEST_BYTES} bytes")
        return _facts.decode(encoded)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error
