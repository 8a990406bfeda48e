"""How far topology versions go on above those that a log is known to have had."""

from typing import Final

LOST_VERSIONS: Final = 1_000_000
"""More than a log can have made since its archives have it: a version takes at least a round to all nodes."""


def floor_after(version: int, at_ms: int, lost_epochs: int = 0) -> int:
    """The version above which those of a log are that goes on from ``version`` at that time, milliseconds since
    1970, without so many epochs that somebody knows.

    Another one may go on from there too, sooner or later, and not know of it. None of their versions are the
    same: a version takes more than a millisecond. Two that go on from there while the clock is behind their
    versions have the same ones.
    """
    known = version + lost_epochs
    return at_ms if at_ms > known else max(known, version + LOST_VERSIONS)
