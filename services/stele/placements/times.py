"""Times as the tables have them, of numbers that anybody may have written. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

MOST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970: a later one is no date in Python."""
_EPOCH_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(at_ms: int) -> datetime:
    """The nearest time from 1970 to 9999: a clock that is wrong stops nobody."""
    return _EPOCH_ZERO + timedelta(milliseconds=min(max(0, at_ms), MOST_MS))


def ms_of(at: datetime) -> int:
    return (at - _EPOCH_ZERO) // timedelta(milliseconds=1)
