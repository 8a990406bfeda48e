"""Ids: UUIDs that begin with a time, so that what is too old to be remembered can be told.

People and services draw version 7 (time and chance). Version 8 holds a time and a hash: whoever must find
the same id again, after a crash or in a test, computes it.
"""

import re
from hashlib import blake2b
from typing import Final

_FORM: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TIME_BITS: Final = 48
_TIME_BYTES: Final = _TIME_BITS // 8
NEWEST_MS: Final = (1 << _TIME_BITS) - 1
"""No id is of a later time."""
TIME_CHARS: Final = 13
"""The first characters of an id are its time: of two ids the one that is newer to the millisecond has the
greater ones."""


def uuid7(ms: int, entropy: int) -> str:
    """The id of a time in milliseconds since 1970; ``entropy`` is 74 random bits."""
    return _text(ms, 7, entropy)


def uuid8(ms: int, digest: bytes) -> str:
    """The id of a time and of what the digest is of; ten bytes of it or more."""
    return _text(ms, 8, int.from_bytes(digest[:10], "big"))


def named(name: str, ms: int = 0) -> str:
    """The same id for the same name and time, always."""
    return uuid8(ms, blake2b(name.encode(), digest_size=16).digest())


def is_id(text: str) -> bool:
    """Whether it is an id in its canonical form; another program's may not be."""
    return _FORM.fullmatch(text) is not None


def parse(text: str) -> bytes | None:
    """The 16 bytes of an id in its canonical form; None when it is none."""
    return bytes.fromhex(text.replace("-", "")) if is_id(text) else None


def state_time_ms(state_id: bytes) -> int:
    """The time inside a state id, in milliseconds since 1970; 0 of a log without an epoch."""
    return int.from_bytes(state_id[:_TIME_BYTES], "big")


def asking_ms(state_id: bytes, now_ms: int, horizon_ms: int = -1) -> int:
    """The time of an id of whoever has read the log up to this state, by its clock: that of the state.

    Ids from the future are not taken, and a process whose clock is ahead must be heard. A state of a time that
    has not come was made by such a clock. Whoever was told a horizon asks under an id that is newer.
    """
    return max(min(state_time_ms(state_id), now_ms), horizon_ms + 1)


def time_ms(request_id: str) -> int:
    """The time inside a canonical id, or inside its first characters."""
    return int(request_id[:8] + request_id[9:13], 16)


def _text(ms: int, version: int, entropy: int) -> str:
    time = ms & NEWEST_MS
    mid, low = (entropy >> 62) & 0xFFF, entropy & ((1 << 62) - 1)
    number = time << 80 | version << 76 | mid << 64 | 0b10 << 62 | low
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
