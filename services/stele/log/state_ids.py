"""State ids: 16 bytes like a UUID version 7, each greater than the one before (docs/design.md, rule 1).

Source: ScyllaDB, raft-in-scylla.md, "Using Group 0 to perform schema changes".
"""

from typing import Final

from stele.log.chain import STATE_BYTES

ENTROPY_BITS: Final = 74
"""Random bits: 128 less those of the time, the version and the variant."""
_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62


def next_state_id(previous: bytes, now_ms: int, entropy: int) -> bytes:
    """Return a state id of ``now_ms`` (milliseconds since 1970) that is greater than ``previous``.

    ``entropy`` is ENTROPY_BITS random bits. The clock may be behind the log. The id is then the
    previous one plus a small random step, which two writers are unlikely to choose both.
    """
    low = entropy & ((1 << 62) - 1)
    mid = (entropy >> 62) & 0xFFF
    candidate = (now_ms << 80) | _VERSION_7 | (mid << 64) | _VARIANT | low
    floor = int.from_bytes(previous, "big")
    if candidate <= floor:
        candidate = floor + 1 + (entropy & 0xFFFF_FFFF)
    return candidate.to_bytes(STATE_BYTES, "big")
