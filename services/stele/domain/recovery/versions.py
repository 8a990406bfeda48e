"""The gap in topology versions between a log and one that continues it."""

from typing import Final

LOST_VERSIONS: Final = 1_000_000
"""More versions than a log can create after its archives' last copy. A version takes at least a
round.
"""


def floor_after(version: int, at_ms: int, lost_epochs: int = 0) -> int:
    """Return the version above which a log begins that continues after ``version``.

    ``at_ms`` is the time in milliseconds since 1970. ``lost_epochs`` is the number of known epochs
    that the log lacks. Another log may also continue from there, sooner or later, without knowing
    of this one. Their versions differ, because a version takes more than a millisecond. They are
    equal only if both continue while the clock is behind their versions.
    """
    known = version + lost_epochs
    return at_ms if at_ms > known else max(known, version + LOST_VERSIONS)
