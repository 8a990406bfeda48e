"""Ids: UUIDs that begin with a time, so that ids too old to be remembered can be recognized.

People and services draw version 7 (time and random bits). Version 8 holds a time and a hash. It is
for senders that must find the same id again, after a crash or in a test.
"""

import re
from hashlib import blake2b
from typing import Final

_FORM: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TIME_BITS: Final = 48
_TIME_BYTES: Final = _TIME_BITS // 8
NEWEST_MS: Final = (1 << _TIME_BITS) - 1
"""The latest time that an id can hold."""
TIME_CHARS: Final = 13
"""Characters at the start of an id that are its time. If an id is newer by a millisecond or more,
these characters are greater.
"""


def uuid7(ms: int, entropy: int) -> str:
    """Return the id of a time in milliseconds since 1970; ``entropy`` is 74 random bits."""
    return _text(ms, 7, entropy)


def uuid8(ms: int, digest: bytes) -> str:
    """Return the id of a time and a digest, which has at least ten bytes."""
    return _text(ms, 8, int.from_bytes(digest[:10], "big"))


def named(name: str, ms: int = 0) -> str:
    """Return the id of a name and a time. Equal arguments give equal ids."""
    return uuid8(ms, blake2b(name.encode(), digest_size=16).digest())


def is_id(text: str) -> bool:
    """Return True for an id in its canonical form. Ids of other programs may not be canonical."""
    return _FORM.fullmatch(text) is not None


def parse(text: str) -> bytes | None:
    """Return the 16 bytes of a canonical id, or None for any other text."""
    return bytes.fromhex(text.replace("-", "")) if is_id(text) else None


def state_time_ms(state_id: bytes) -> int:
    """Return the time inside a state id, in milliseconds since 1970; 0 for a log without epochs."""
    return int.from_bytes(state_id[:_TIME_BYTES], "big")


def asking_ms(state_id: bytes, now_ms: int, horizon_ms: int = -1) -> int:
    """Return the time for a new id of a caller that has read the log up to this state.

    Ids from the future are rejected, but a process whose clock is ahead must be able to send
    commands. The time is therefore the state's. If the state's time is later than ``now_ms``, such
    a clock made it, and ``now_ms`` counts. A caller that received a horizon needs an id newer than
    ``horizon_ms``.
    """
    return max(min(state_time_ms(state_id), now_ms), horizon_ms + 1)


def time_ms(request_id: str) -> int:
    """Return the time inside a canonical id, or inside its first ``TIME_CHARS`` characters."""
    return int(request_id[:8] + request_id[9:13], 16)


def _text(ms: int, version: int, entropy: int) -> str:
    # The layout of RFC 9562: 48 bits of time, the version, 12 bits, the variant, 62 bits.
    time = ms & NEWEST_MS
    mid, low = (entropy >> 62) & 0xFFF, entropy & ((1 << 62) - 1)
    number = time << 80 | version << 76 | mid << 64 | 0b10 << 62 | low
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
